//! `ReadLog` and `SearchLog`: parts of a run's log. They hold nobody up and wait for nothing.

use bytes::Bytes;
use lodge_proto::v1 as wire;

use super::messages::stream_to_wire;
use crate::error::{Error, Result};
use crate::exec::log::{self, Tail};
use crate::exec::search::{self, Found, Line, RawQuery};
use crate::exec::stream::beyond_the_end;
use crate::exec::{Run, Stream};

/// Bytes of a log that are returned if the caller does not say.
const READ_DEFAULT_BYTES: usize = 64 << 10;
/// Bytes of a log that are returned at most.
const READ_MAX_BYTES: usize = 1 << 20;

/// Reads at the offset asked for, or the last lines.
pub(super) async fn read(
    run: &Run,
    stream: Stream,
    request: &wire::ReadLogRequest,
) -> Result<wire::ReadLogResponse> {
    let limit = read_limit(request.limit)?;
    let log = run.log(stream);
    let part = match (request.tail_lines, request.offset) {
        (0, offset) if offset > log.len() => {
            return Err(beyond_the_end(stream, offset, log.len()));
        }
        (0, offset) => log::read_from(log, offset, limit).await,
        (lines, 0) => log::read_tail(log, Tail { lines, limit }).await,
        (_, _) => {
            return Err(Error::invalid(
                "INVALID_TAIL",
                "`tail_lines` and `offset` are both set",
            ));
        }
    };
    let part = part.map_err(unreadable)?;
    Ok(wire::ReadLogResponse {
        offset: part.offset,
        data: part.bytes,
        total_bytes: log.len(),
        gap: part.gap.map(|gap| wire::Gap {
            stream: stream_to_wire(stream),
            from: gap.start,
            to: gap.end,
        }),
    })
}

/// Searches for lines.
pub(super) async fn search(
    run: &Run,
    stream: Stream,
    request: wire::SearchLogRequest,
) -> Result<wire::SearchLogResponse> {
    let query = RawQuery {
        pattern: request.pattern,
        ignore_case: request.ignore_case,
        before: request.before,
        after: request.after,
        max_matches: request.max_matches,
        offset: request.offset,
    };
    let found = search::search(run, stream, query).await?;
    Ok(found_to_wire(stream, found))
}

fn found_to_wire(stream: Stream, found: Found) -> wire::SearchLogResponse {
    let gaps = found.gaps.into_iter().map(|gap| wire::Gap {
        stream: stream_to_wire(stream),
        from: gap.start,
        to: gap.end,
    });
    wire::SearchLogResponse {
        lines: found.lines.into_iter().map(line_to_wire).collect(),
        next_offset: found.next_offset,
        total_bytes: found.total,
        gaps: gaps.collect(),
    }
}

fn line_to_wire(line: Line) -> wire::LogLine {
    wire::LogLine {
        offset: line.offset,
        text: Bytes::from(line.text),
        matched: line.matched,
        truncated: line.truncated,
    }
}

fn read_limit(asked: u32) -> Result<usize> {
    match asked as usize {
        0 => Ok(READ_DEFAULT_BYTES),
        asked if asked <= READ_MAX_BYTES => Ok(asked),
        _ => Err(Error::invalid(
            "INVALID_READ_LIMIT",
            format!("limit is {asked}; it is 0 for the default, or 1 to {READ_MAX_BYTES}"),
        )),
    }
}

fn unreadable(error: std::io::Error) -> Error {
    Error::internal("LOG_UNREADABLE", "the run's log cannot be read", error)
}
