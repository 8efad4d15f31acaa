//! The runs of one sandbox: how many may live at once, which are known, and how long ended ones are kept.
//!
//! It starts and ends nothing. Ended runs go, with their logs, after a day or when there are a thousand of them; one
//! whose processes live on is kept until they are gone.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::run::Run;
use crate::error::{Error, ErrorKind, Result};
use crate::sandbox::changes::Teller;
use crate::sandbox::id::RunId;

/// Live runs of one sandbox.
pub const LIVE_MAX: usize = 256;
/// Ended runs that are kept.
const ENDED_MAX: usize = 1_000;
/// How long an ended run is kept.
const ENDED_FOR: Duration = Duration::from_secs(24 * 3600);
/// At most this often are the groups of survivors looked at.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// The runs of one sandbox. Cheap to clone.
#[derive(Clone, Default)]
pub struct RunTable(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    live: usize,
    /// Told when that changes.
    teller: Option<Arc<Teller>>,
    known: HashMap<RunId, Run>,
    /// In the order of their ends.
    ended: VecDeque<(Instant, RunId)>,
    /// Ended, but with processes or an open pipe.
    unsettled: Vec<Run>,
    swept: Option<Instant>,
}

/// A place among the live runs of a sandbox; dropping it gives the place back.
pub(super) struct Slot(RunTable);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.lock().live -= 1;
        self.0.tell_change();
    }
}

impl RunTable {
    /// Live runs now, those about to start included.
    pub fn live(&self) -> usize {
        self.lock().live
    }

    /// Ended runs that are still known.
    pub fn kept_count(&self) -> usize {
        self.lock().ended.len()
    }

    /// A place among the live runs, for tests of other parts.
    #[cfg(test)]
    pub(crate) fn reserve_place(&self) -> Result<impl Sized + use<>> {
        self.reserve()
    }

    /// Tells of runs that begin and end from here on.
    pub(crate) fn tell_changes_to(&self, teller: &Arc<Teller>) {
        self.lock().teller = Some(Arc::clone(teller));
    }

    fn tell_change(&self) {
        let teller = self.lock().teller.clone();
        if let Some(teller) = teller {
            teller.tell();
        }
    }

    /// The run of this id.
    pub fn get(&self, id: &RunId) -> Result<Run> {
        self.lock().known.get(id).cloned().ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                "RUN_NOT_FOUND",
                format!("no run {id} in this sandbox"),
            )
            .hint("ended runs are kept for a day, at most 1000 per sandbox")
        })
    }

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

    pub(super) fn reserve(&self) -> Result<Slot> {
        let mut inner = self.lock();
        if inner.live >= LIVE_MAX {
            return Err(Error::new(
                ErrorKind::ResourceExhausted,
                "TOO_MANY_RUNS",
                format!("{LIVE_MAX} runs live in this sandbox"),
            )
            .hint("wait for one to end, or kill one"));
        }
        inner.live += 1;
        drop(inner);
        self.tell_change();
        Ok(Slot(self.clone()))
    }

    pub(super) fn insert(&self, run: Run) {
        self.lock().known.insert(run.id().clone(), run);
    }

    /// Notes that a run's command has ended and lets go of what is too old or too much.
    pub(super) fn ended(&self, run: &Run) {
        let now = Instant::now();
        let gone = {
            let mut inner = self.lock();
            inner.ended.push_back((now, run.id().clone()));
            inner.expire(now)
        };
        gone.iter().for_each(Run::remove_logs);
    }

    /// Keeps an ended run in sight until its processes are gone.
    pub(super) fn watch_survivors(&self, run: Run) {
        self.lock().unsettled.push(run);
    }

    /// Lets go of the groups of survivors that have ended meanwhile.
    pub(super) async fn sweep(&self) {
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
        }
        self.lock().unsettled.retain(|run| !run.is_settled());
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Takes out the ended runs that are not to be kept.
    fn expire(&mut self, now: Instant) -> Vec<Run> {
        // Survivors keep no place of those that are settled: else many of them would push a result out at once.
        let most = ENDED_MAX + self.unsettled.len();
        let known = &self.known;
        let is_settled = |id: &RunId| known.get(id).is_none_or(Run::is_settled);
        let due = take_due(&mut self.ended, most, now, is_settled);
        due.iter().filter_map(|id| self.known.remove(id)).collect()
    }
}

/// Takes out of `ended`, oldest first, what is too old or more than `most`. One that is not settled stays in its place:
/// the order is that of the ends, and the first that is young enough is the last that has to be looked at.
fn take_due(
    ended: &mut VecDeque<(Instant, RunId)>,
    most: usize,
    now: Instant,
    is_settled: impl Fn(&RunId) -> bool,
) -> Vec<RunId> {
    let mut due = Vec::new();
    let mut place = 0;
    while let Some((at, id)) = ended.get(place) {
        if ended.len() <= most && now.duration_since(*at) < ENDED_FOR {
            break;
        }
        if is_settled(id) {
            due.extend(ended.remove(place).map(|(_, id)| id));
        } else {
            place += 1;
        }
    }
    due
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unsettled_run_keeps_its_place_and_hides_nothing_behind_it() {
        let start = Instant::now();
        let ids: Vec<RunId> = (0..4).map(|_| RunId::random()).collect();
        let hours = |n: u64| start + Duration::from_secs(n * 3600);
        let mut ended: VecDeque<_> = (0..).map(hours).zip(ids.clone()).collect();
        let is_settled = |id: &RunId| *id != ids[0];
        assert_eq!(take_due(&mut ended, 3, hours(3), is_settled), ids[1..2]);
        assert_eq!(take_due(&mut ended, 3, hours(26), is_settled), ids[2..3]);
        let left: Vec<_> = ended.iter().map(|(_, id)| id.clone()).collect();
        assert_eq!(left, [ids[0].clone(), ids[3].clone()]);
        assert_eq!(take_due(&mut ended, 3, hours(26), |_| true), ids[..1]);
        assert_eq!(ended.len(), 1);
    }
}
