//! Runs with processes: they stay in memory until those are gone, then the history has them.

use std::time::{Duration, Instant};

use super::{RunTable, ShortId};
use crate::exec::entry::log_bytes;
use crate::exec::run::Run;

/// At most this often are the groups of survivors looked at.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

impl RunTable {
    /// Runs that have processes, or may have: the live ones and those with survivors.
    pub async fn with_processes(&self) -> Vec<Run> {
        self.sweep().await;
        self.lock()
            .known
            .values()
            .filter(|run| !run.is_settled())
            .cloned()
            .collect()
    }

    /// Waits until what runs wrote is in their logs: of use once their processes have been ended, and before the logs go.
    pub async fn drained(&self) {
        let known: Vec<Run> = self.lock().known.values().cloned().collect();
        for run in known {
            run.drained().await;
        }
    }

    /// Lets go of an ended run as soon as its processes are gone.
    pub(in crate::exec) async fn let_go_when_settled(&self, run: &Run) {
        run.try_settle().await;
        if run.is_settled() {
            self.let_go(run).await;
        } else {
            self.lock().unsettled.push(run.clone());
        }
        self.sweep().await;
    }

    /// Lets go of the groups of survivors that have ended meanwhile.
    pub(in crate::exec) async fn sweep(&self) {
        let now = Instant::now();
        let candidates = {
            let mut inner = self.lock();
            let recent = inner
                .swept
                .is_some_and(|at| now.duration_since(at) < SWEEP_EVERY);
            if recent || inner.unsettled.is_empty() {
                return;
            }
            inner.swept = Some(now);
            inner.unsettled.clone()
        };
        for run in &candidates {
            run.try_settle().await;
            if run.is_settled() {
                self.let_go(run).await;
            }
        }
        self.lock().unsettled.retain(|run| !run.is_settled());
    }

    /// A settled run is one of the history alone. What its survivors wrote after its end is noted there.
    async fn let_go(&self, run: &Run) {
        if run.has_written_more() {
            self.record(run).await;
        }
        let bytes = log_bytes(run.extents());
        let counted = {
            let mut inner = self.lock();
            inner.known.remove(&ShortId::from(run.id()));
            if let Some(request) = run.request() {
                inner.requests.let_go(request, run.id());
            }
            let kept = inner.history.get_mut(ShortId::from(run.id()));
            kept.map(|kept| std::mem::replace(&mut kept.log_bytes, bytes))
        };
        match (counted, self.0.retention()) {
            // Twice at once, if a sweep and the run's own task meet.
            (Some(before), Some(retention)) => {
                retention.removed(before);
                retention.settled(bytes);
            }
            _ => tracing::debug!(run = %run.id(), "a settled run is not in the history"),
        }
    }
}
