//! The start-up report: what became of everything that an earlier daemon left, in numbers. What became of each sandbox is a line of its own
//! in the log.

use std::fmt;
use std::time::Duration;

use super::handle::View;
use super::state::State;

/// What became of what an earlier daemon left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Sandboxes that go on: their PID 1 was taken over.
    pub adopted: usize,
    /// Live runs of those.
    pub runs: usize,
    /// Sandboxes that have no processes; their next run starts them.
    pub stopped: usize,
    /// Deletes that were cut short and are being finished.
    pub finished: usize,
    /// Creates that were cut short and were taken back.
    pub undone: usize,
    /// Sandboxes that are damaged: each is listed with its reason, and left alone.
    pub quarantined: usize,
    /// How long it took.
    pub took: Duration,
}

impl Recovery {
    /// Counts one sandbox as it was found.
    pub(super) fn count(&mut self, sandbox: &View) {
        match sandbox.state {
            State::Damaged => self.quarantined += 1,
            State::Stopped => self.stopped += 1,
            _ => {
                self.adopted += 1;
                self.runs += usize::try_from(sandbox.live_runs).unwrap_or(usize::MAX);
            }
        }
    }

    /// Says it in the log.
    pub(super) fn log(&self) {
        tracing::info!(
            adopted = self.adopted,
            runs = self.runs,
            stopped = self.stopped,
            finished = self.finished,
            undone = self.undone,
            quarantined = self.quarantined,
            took_ms = self.took.as_millis(),
            "what an earlier daemon left was taken up"
        );
    }
}

impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "took up {} sandboxes with {} runs; {} stopped, {} damaged; {} deletes finished, {} creates undone",
            self.adopted, self.runs, self.stopped, self.quarantined, self.finished, self.undone
        )
    }
}
