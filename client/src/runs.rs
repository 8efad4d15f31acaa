//! The runs of a sandbox, live and ended.

use std::ops::Range;
use std::time::SystemTime;

use lodge_proto::v1 as pb;

use crate::error::Result;
use crate::outcome::Outcome;
use crate::sandbox::Sandbox;
use crate::wire::{CALL_DEADLINE, answer, time};

/// Runs asked for at once; the server's maximum.
const PAGE: i32 = 1000;

/// A run, live or ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunInfo {
    /// Its id.
    pub run_id: String,
    /// The caller's name for the call that started it; empty for none.
    pub request_id: String,
    /// The first 256 bytes of its command, as one line, values of secrets replaced.
    pub command: String,
    /// When it was started.
    pub started_at: Option<SystemTime>,
    /// How it ended; `None` while its command lives.
    pub outcome: Option<Outcome>,
    /// When its command ended; `None` while it lives.
    pub ended_at: Option<SystemTime>,
    /// Its standard output.
    pub stdout: LogExtent,
    /// Its standard error.
    pub stderr: LogExtent,
}

/// What there is of a stream's log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogExtent {
    /// Bytes that the stream has so far.
    pub total_bytes: u64,
    /// Offsets of the bytes that are no longer there; empty if all are.
    pub gap: Range<u64>,
}

/// Which runs are wanted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RunFilter {
    /// All that are known: ended ones for a day, at most 1000.
    #[default]
    All,
    /// Those whose command lives.
    Live,
}

impl Sandbox {
    /// One run, live or ended.
    ///
    /// # Errors
    /// NOT_FOUND if the sandbox or the run does not exist.
    pub async fn get_run(&self, run_id: impl Into<String>) -> Result<RunInfo> {
        let request = pb::GetRunRequest {
            sandbox: self.wire_ref(),
            run_id: run_id.into(),
        };
        let call = answer(Some(CALL_DEADLINE), self.client().exec().get_run(request)).await;
        RunInfo::from_wire(call?)
    }

    /// Its runs, the newest first. Never wakes it.
    ///
    /// # Errors
    /// NOT_FOUND if it does not exist.
    pub async fn list_runs(&self, filter: RunFilter) -> Result<Vec<RunInfo>> {
        let mut all = Vec::new();
        let mut page_token = String::new();
        loop {
            let request = pb::ListRunsRequest {
                sandbox: self.wire_ref(),
                page_size: PAGE,
                page_token,
                live_only: filter == RunFilter::Live,
            };
            let call = answer(Some(CALL_DEADLINE), self.client().exec().list_runs(request)).await?;
            for run in call.runs {
                all.push(RunInfo::from_wire(run)?);
            }
            page_token = call.next_page_token;
            if page_token.is_empty() {
                return Ok(all);
            }
        }
    }
}

impl RunInfo {
    /// Whether its command lives.
    pub fn is_live(&self) -> bool {
        self.outcome.is_none()
    }

    fn from_wire(run: pb::RunInfo) -> Result<Self> {
        Ok(Self {
            run_id: run.run_id,
            request_id: run.request_id,
            command: run.command,
            started_at: run.started_at.map(time).transpose()?,
            outcome: run.result.map(Outcome::from_wire).transpose()?,
            ended_at: run.ended_at.map(time).transpose()?,
            stdout: LogExtent::from_wire(run.stdout),
            stderr: LogExtent::from_wire(run.stderr),
        })
    }
}

impl LogExtent {
    fn from_wire(extent: Option<pb::LogExtent>) -> Self {
        let extent = extent.unwrap_or_default();
        Self {
            total_bytes: extent.total_bytes,
            gap: extent.gap_from..extent.gap_to,
        }
    }
}
