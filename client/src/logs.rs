//! Parts of a run's log: from an offset, the last lines, or lines that match a pattern.

use std::future::IntoFuture;
use std::ops::Range;
use std::pin::Pin;

use bytes::Bytes;
use lodge_proto::v1 as pb;

use crate::error::Result;
use crate::sandbox::Sandbox;
use crate::stream::StdStream;
use crate::wire::{CALL_DEADLINE, answer};

/// A part of a run's log.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogPart {
    /// Bytes of the stream before `data`; more than was asked for where the log has a gap there.
    pub offset: u64,
    /// The bytes.
    pub data: Bytes,
    /// Bytes that the stream has so far.
    pub total_bytes: u64,
    /// Offsets of the bytes that were asked for and are no longer there; `None` if all are.
    pub gap: Option<Range<u64>>,
}

/// A search in a run's log. Await it for the first lines that are found.
#[must_use = "nothing is searched until it is awaited"]
#[derive(Debug, Clone)]
pub struct Search {
    sandbox: Sandbox,
    request: pb::SearchLogRequest,
}

/// What a search has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogMatches {
    /// Matching lines and those around them, in their order, each once.
    pub lines: Vec<LogLine>,
    /// Where to go on; `None` if everything that was there was searched.
    pub next_offset: Option<u64>,
    /// Bytes that the stream has so far.
    pub total_bytes: u64,
    /// Offsets that could not be searched, for their bytes are no longer there.
    pub gaps: Vec<Range<u64>>,
}

/// A line of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogLine {
    /// Bytes of the stream before it.
    pub offset: u64,
    /// Its first bytes, at most 4096, without its end.
    pub text: Bytes,
    /// It matches; others are around a match.
    pub matched: bool,
    /// `text` is not the whole line.
    pub truncated: bool,
}

impl Sandbox {
    /// Reads at most `limit` bytes (zero takes 64 KiB, the maximum is 1 MiB) of what a run wrote, from `offset` on.
    ///
    /// # Errors
    /// NOT_FOUND if the sandbox or the run does not exist, OUT_OF_RANGE beyond the end.
    pub async fn read_log(
        &self,
        run_id: impl Into<String>,
        stream: StdStream,
        offset: u64,
        limit: u32,
    ) -> Result<LogPart> {
        self.part(pb::ReadLogRequest {
            run_id: run_id.into(),
            stream: stream.to_wire(),
            offset,
            limit,
            ..Default::default()
        })
        .await
    }

    /// The last `lines` lines (at least one) of what a run wrote, as many of them as 1 MiB holds.
    ///
    /// # Errors
    /// NOT_FOUND if the sandbox or the run does not exist.
    pub async fn tail(
        &self,
        run_id: impl Into<String>,
        stream: StdStream,
        lines: u32,
    ) -> Result<LogPart> {
        self.part(pb::ReadLogRequest {
            run_id: run_id.into(),
            stream: stream.to_wire(),
            limit: 1 << 20,
            tail_lines: lines.max(1),
            ..Default::default()
        })
        .await
    }

    /// Searches what a run wrote for lines that match a regular expression (the `regex` crate's syntax). The server
    /// searches, and returns only what was found.
    ///
    /// # Errors
    /// When awaited: NOT_FOUND if the sandbox or the run does not exist, INVALID_ARGUMENT for a bad pattern.
    pub fn search_log(
        &self,
        run_id: impl Into<String>,
        stream: StdStream,
        pattern: impl Into<String>,
    ) -> Search {
        let request = pb::SearchLogRequest {
            sandbox: self.wire_ref(),
            run_id: run_id.into(),
            stream: stream.to_wire(),
            pattern: pattern.into(),
            ..Default::default()
        };
        Search {
            sandbox: self.clone(),
            request,
        }
    }

    async fn part(&self, mut request: pb::ReadLogRequest) -> Result<LogPart> {
        request.sandbox = self.wire_ref();
        let mut call = self.client().exec();
        let part = answer(Some(CALL_DEADLINE), call.read_log(request)).await?;
        Ok(LogPart {
            offset: part.offset,
            data: part.data,
            total_bytes: part.total_bytes,
            gap: part.gap.map(range),
        })
    }
}

impl Search {
    /// Upper and lower case are the same.
    pub fn ignore_case(mut self) -> Self {
        self.request.ignore_case = true;
        self
    }

    /// Lines to return before each match; at most 100.
    pub fn before(mut self, lines: u32) -> Self {
        self.request.before = lines;
        self
    }

    /// Lines to return after each match; at most 100.
    pub fn after(mut self, lines: u32) -> Self {
        self.request.after = lines;
        self
    }

    /// Matches to return at most: 100 without it, 1000 at most.
    pub fn max_matches(mut self, matches: u32) -> Self {
        self.request.max_matches = matches;
        self
    }

    /// Where to begin: `next_offset` of what was found before.
    pub fn offset(mut self, offset: u64) -> Self {
        self.request.offset = offset;
        self
    }
}

impl IntoFuture for Search {
    type Output = Result<LogMatches>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<LogMatches>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let mut call = self.sandbox.client().exec();
            let found = answer(Some(CALL_DEADLINE), call.search_log(self.request)).await?;
            Ok(LogMatches::from_wire(found))
        })
    }
}

impl LogMatches {
    fn from_wire(found: pb::SearchLogResponse) -> Self {
        let lines = found.lines.into_iter().map(|line| LogLine {
            offset: line.offset,
            text: line.text,
            matched: line.matched,
            truncated: line.truncated,
        });
        Self {
            lines: lines.collect(),
            next_offset: found.next_offset,
            total_bytes: found.total_bytes,
            gaps: found.gaps.into_iter().map(range).collect(),
        }
    }
}

fn range(gap: pb::Gap) -> Range<u64> {
    gap.from..gap.to
}
