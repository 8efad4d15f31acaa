//! Pages of a listing: their size, and the token that begins the next one.

use crate::error::{Error, Result};
use crate::sandbox::handle::Identity;
use crate::sandbox::id::{SandboxId, SandboxName, Tenant};

/// Sandboxes on a page if the caller does not say.
const PAGE_DEFAULT: i32 = 100;
/// Sandboxes on a page at most.
const PAGE_MAX: i32 = 1000;

pub(super) fn page_size(asked: i32) -> Result<usize> {
    match asked {
        0 => Ok(PAGE_DEFAULT.unsigned_abs() as usize),
        1..=PAGE_MAX => Ok(asked.unsigned_abs() as usize),
        _ => Err(Error::invalid(
            "INVALID_PAGE_SIZE",
            format!("page_size is {asked}; it is 0 for the default, or 1 to {PAGE_MAX}"),
        )),
    }
}

/// The last sandbox of the page before: `<id>:<name>`. A forged one only begins the next page elsewhere.
pub(super) fn page_token(last: &Identity) -> String {
    format!("{}:{}", last.id, last.name)
}

pub(super) fn page_after(token: &str) -> Result<Option<Identity>> {
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

    #[test]
    fn page_sizes_out_of_bounds_are_refused() {
        assert_eq!(page_size(0).expect("default"), 100);
        for size in [-1, i32::MIN, 1001, i32::MAX] {
            assert!(page_size(size).is_err(), "{size} was accepted");
        }
    }
}
