//! Pages of a listing: their size, and the token that begins the next one.

use lodge_proto::v1 as wire;
use prost::Message as _;

use super::messages::to_wire;
use crate::error::{Error, Result};
use crate::sandbox::handle::{Identity, View};
use crate::sandbox::id::{SandboxId, SandboxName, Tenant};

/// Sandboxes on a page if the caller does not say.
const PAGE_DEFAULT: i32 = 100;
/// Sandboxes on a page at most.
const PAGE_MAX: i32 = 1000;
/// Bytes of a page, but for its last sandbox; a message may have twice as many.
const PAGE_BYTES: usize = 8 << 20;

pub(in crate::api::grpc) fn page_size(asked: i32) -> Result<usize> {
    match asked {
        0 => Ok(PAGE_DEFAULT.unsigned_abs() as usize),
        1..=PAGE_MAX => Ok(asked.unsigned_abs() as usize),
        _ => Err(Error::invalid(
            "INVALID_PAGE_SIZE",
            format!("page_size is {asked}; it is 0 for the default, or 1 to {PAGE_MAX}"),
        )
        .hint("leave it at 0")),
    }
}

/// The page of `views`, which has one more than `size` where more follow. Ends earlier where it would become too large
/// for one message.
pub(super) fn page_of(
    views: impl IntoIterator<Item = View>,
    size: usize,
) -> wire::ListSandboxesResponse {
    let mut page = wire::ListSandboxesResponse::default();
    let (mut bytes, mut last) = (0, None);
    for view in views {
        if page.sandboxes.len() == size || bytes > PAGE_BYTES {
            page.next_page_token = last.as_ref().map(page_token).unwrap_or_default();
            break;
        }
        last = Some(view.identity.clone());
        let sandbox = to_wire(view);
        bytes += sandbox.encoded_len();
        page.sandboxes.push(sandbox);
    }
    page
}

/// The last sandbox of the page before: `<id>:<name>`. A forged one only begins the next page elsewhere.
pub(in crate::api::grpc) fn page_token(last: &Identity) -> String {
    format!("{}:{}", last.id, last.name)
}

pub(in crate::api::grpc) fn page_after(token: &str) -> Result<Option<Identity>> {
    if token.is_empty() {
        return Ok(None);
    }
    let parsed = token.split_once(':').and_then(|(id, name)| {
        let (id, name) = (SandboxId::parse(id).ok()?, SandboxName::parse(name).ok()?);
        Some(Identity {
            id,
            tenant: Tenant::default(),
            name,
        })
    });
    parsed.map(Some).ok_or_else(|| {
        Error::invalid(
            "INVALID_PAGE_TOKEN",
            "page_token is not one that a listing gave",
        )
        .hint("give the last answer's next_page_token as it is, or none")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_token_is_read_back_and_a_forged_one_is_refused() {
        let last = Identity {
            id: SandboxId::random(),
            tenant: Tenant::default(),
            name: SandboxName::parse("a.b").expect("valid"),
        };
        assert_eq!(
            page_after(&page_token(&last)).expect("own token"),
            Some(last)
        );
        for forged in [":", "x", "../../etc:passwd", "aaaaaaaaaaaaaaaaaaaa:-rf"] {
            assert!(page_after(forged).is_err(), "{forged:?} was accepted");
        }
    }

    fn view(name: &str, env_bytes: usize) -> View {
        let identity = Identity {
            id: SandboxId::random(),
            tenant: Tenant::default(),
            name: SandboxName::parse(name).expect("valid"),
        };
        View {
            env: [("X".to_owned(), "x".repeat(env_bytes))].into(),
            ..View::nothing(identity)
        }
    }

    #[test]
    fn a_page_has_a_token_only_where_more_follow() {
        let page = page_of([view("a", 0), view("b", 0)], 2);
        assert_eq!(
            (page.sandboxes.len(), page.next_page_token.as_str()),
            (2, "")
        );
        let page = page_of([view("a", 0), view("b", 0), view("c", 0)], 2);
        assert_eq!(page.sandboxes.len(), 2);
        let after = page_after(&page.next_page_token).expect("own token");
        assert_eq!(after.expect("one").name.as_str(), "b");
    }

    /// ATTACKS A17: a thousand sandboxes with as many variables as they may have are 256 MiB. A page ends earlier, has at
    /// least one, and no more than the message can hold; sandboxes that do not fit are not even looked at.
    #[test]
    fn attack_a17_a_page_of_large_sandboxes_ends_where_a_message_does() {
        let looked_at = std::cell::Cell::new(0);
        let views = (0..1000).map(|number| {
            looked_at.set(looked_at.get() + 1);
            view(&format!("s{number}"), 256 << 10)
        });
        let page = page_of(views, 1000);
        assert!(page.encoded_len() < 9 << 20, "{}", page.encoded_len());
        assert!((30..=33).contains(&page.sandboxes.len()));
        assert!(!page.next_page_token.is_empty());
        assert_eq!(looked_at.get(), page.sandboxes.len() + 1);
        assert_eq!(page_of([view("a", 16 << 20)], 1000).sandboxes.len(), 1);
    }

    #[test]
    fn page_sizes_out_of_bounds_are_refused() {
        assert_eq!(page_size(0).expect("default"), 100);
        for size in [-1, i32::MIN, 1001, i32::MAX] {
            assert!(page_size(size).is_err(), "{size} was accepted");
        }
    }
}
