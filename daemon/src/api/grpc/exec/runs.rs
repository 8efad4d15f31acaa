//! `GetRun` and `ListRuns`: runs as they are told of, and pages of them.

use lodge_proto::v1 as wire;
use prost_types::Timestamp;

use super::messages::result_to_wire;
use crate::error::{Error, Result};
use crate::exec::run::Account;
use crate::exec::{Extent, Listed, Page, Which};
use crate::sandbox::id::RunId;

/// Runs of a page if the caller does not say.
const PAGE_DEFAULT: usize = 100;
/// Runs of a page at most.
const PAGE_MAX: usize = 1_000;

/// What a request asks for.
pub(super) fn page(request: &wire::ListRunsRequest) -> Result<Page> {
    Ok(Page {
        which: if request.live_only {
            Which::Live
        } else {
            Which::All
        },
        after: page_after(&request.page_token)?,
        limit: page_size(request.page_size)?,
    })
}

fn page_size(asked: i32) -> Result<usize> {
    match usize::try_from(asked) {
        Ok(0) => Ok(PAGE_DEFAULT),
        Ok(asked) if asked <= PAGE_MAX => Ok(asked),
        _ => Err(Error::invalid(
            "INVALID_PAGE_SIZE",
            format!("page_size is {asked}; it is 0 for the default, or 1 to {PAGE_MAX}"),
        )),
    }
}

/// A token is the start of the last run of the page, in milliseconds since 1970, a dot, and its id.
fn page_after(token: &str) -> Result<Option<(u64, RunId)>> {
    if token.is_empty() {
        return Ok(None);
    }
    let parsed = token.split_once('.').and_then(|(started, id)| {
        let started = started.parse().ok()?;
        Some((started, RunId::parse(id).ok()?))
    });
    let invalid = || Error::invalid("INVALID_PAGE_TOKEN", "not a page token of this call");
    parsed.map(Some).ok_or_else(invalid)
}

/// The answer.
pub(super) fn response(listed: &Listed) -> wire::ListRunsResponse {
    let last = listed.last.as_ref();
    let next_page_token = last.map(|(started_ms, id)| format!("{started_ms}.{id}"));
    wire::ListRunsResponse {
        runs: listed.runs.iter().map(|run| info(run.account())).collect(),
        next_page_token: next_page_token.unwrap_or_default(),
    }
}

/// One run.
pub(super) fn info(account: Account) -> wire::RunInfo {
    let Account {
        id,
        request_id,
        command,
        started_at,
        end,
        stdout,
        stderr,
    } = account;
    let (result, ended_at) = end
        .map(|(result, at)| (result_to_wire(&result), at))
        .unzip();
    wire::RunInfo {
        run_id: id.into(),
        request_id,
        command,
        started_at: Some(Timestamp::from(started_at)),
        result,
        ended_at: ended_at.map(Timestamp::from),
        stdout: Some(extent(stdout)),
        stderr: Some(extent(stderr)),
    }
}

fn extent(extent: Extent) -> wire::LogExtent {
    wire::LogExtent {
        total_bytes: extent.total,
        gap_from: extent.gap_from,
        gap_to: extent.gap_to,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_token_is_what_a_page_ended_with() {
        let id = RunId::random();
        let token = format!("1700000000123.{id}");
        let after = page_after(&token).expect("valid");
        assert_eq!(after, Some((1_700_000_000_123, id)));
        assert_eq!(page_after("").expect("the first page"), None);
        for token in [
            "x",
            ".",
            "1.",
            "1.short",
            "-1.aaaaaaaaaaaaaaaaaaaa",
            "99999999999999999999.aaaaaaaaaaaaaaaaaaaa",
        ] {
            let refused = page_after(token).expect_err("no token");
            assert_eq!(refused.reason(), "INVALID_PAGE_TOKEN", "{token}");
        }
    }

    #[test]
    fn page_sizes_are_bounded() {
        assert_eq!(page_size(0).expect("the default"), 100);
        assert_eq!(page_size(1000).expect("the most"), 1000);
        for size in [-1, 1001, i32::MIN, i32::MAX] {
            assert!(page_size(size).is_err(), "{size}");
        }
    }
}
