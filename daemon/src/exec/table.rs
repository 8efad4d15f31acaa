//! The runs of one sandbox: how many may live at once, which are known, and who asked for them.
//!
//! It starts and ends nothing. A run is held in memory as long as it has processes or pipes; after that it is one of the
//! history, which takes a few dozen bytes and outlives the daemon (see `books`). Finding one of those reads the disk.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use super::entry::{Begun, Ended};
use super::history::{History, Kept, ShortId};
use super::journal::Open;
use super::ps::Listings;
use super::requests::Requests;
use super::run::Run;
use super::turns::Turns;
use crate::error::{Error, ErrorKind, Result};
use crate::sandbox::changes::Teller;
use crate::sandbox::id::RunId;

/// What is written down of runs, and read again.
mod books;
/// Calls that have a name.
mod claim;
/// Lists of runs, page by page.
mod list;
/// Runs with processes, and what becomes of them.
mod survivors;

use books::Home;
pub(super) use claim::{Claim, Claimed};
pub use list::{Listed, Page, Which};

/// Live runs of one sandbox.
pub const LIVE_MAX: usize = 256;

/// The runs of one sandbox. Cheap to clone.
#[derive(Clone, Default)]
pub struct RunTable(Arc<Shared>);

/// What all who look at a table share.
#[derive(Default)]
pub(super) struct Shared {
    inner: Mutex<Inner>,
    /// Where its files are; none before the first start of a new sandbox.
    home: OnceLock<Home>,
    turns: Turns,
    listings: Listings,
}

#[derive(Default)]
struct Inner {
    live: usize,
    /// Told when that changes.
    teller: Option<Arc<Teller>>,
    /// Live, or with processes or an open pipe.
    known: HashMap<ShortId, Run>,
    history: History,
    /// Which of the history still have processes is not known yet: none is let go.
    taking_up: bool,
    requests: Requests,
    /// Runs of an earlier daemon of which nobody knows yet, or can be asked, what became of them.
    open: Vec<Open>,
    /// About to be started.
    starting: HashMap<ShortId, Begun>,
    /// Of the history: those that could not be written down.
    unwritten: HashMap<ShortId, Box<Ended>>,
    /// Of the known: ended, but with processes or an open pipe.
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

/// Where a run is.
enum Whereabouts {
    Known(Run),
    History,
    Open,
    Nowhere,
}

impl RunTable {
    /// Live runs now, those about to start included.
    pub fn live(&self) -> usize {
        self.lock().live
    }

    /// The sandbox's turns at moving output.
    pub(super) fn turns(&self) -> &Turns {
        &self.0.turns
    }

    /// The sandbox's turns at reading of processes.
    pub(super) fn listings(&self) -> &Listings {
        &self.0.listings
    }

    /// What the logs of ended runs take on disk, in bytes.
    pub fn log_bytes(&self) -> u64 {
        self.lock().history.log_bytes()
    }

    /// Ended runs that are still known.
    pub fn kept_count(&self) -> usize {
        self.lock().history.len()
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

    /// The run of this id, live or ended.
    pub async fn find(&self, id: &RunId) -> Result<Run> {
        match self.whereabouts(id) {
            Whereabouts::Known(run) => Ok(run),
            Whereabouts::History => self.recorded(id).await,
            Whereabouts::Open => Err(unreachable()),
            Whereabouts::Nowhere => Err(not_found(id)),
        }
    }

    fn whereabouts(&self, id: &RunId) -> Whereabouts {
        let (inner, short) = (self.lock(), ShortId::from(id));
        if let Some(run) = inner.known.get(&short) {
            Whereabouts::Known(run.clone())
        } else if inner.history.get(short).is_some() {
            Whereabouts::History
        } else if inner.open.iter().any(|one| one.begun.run == *id) {
            Whereabouts::Open
        } else {
            Whereabouts::Nowhere
        }
    }

    /// Reads a run of the history.
    async fn recorded(&self, id: &RunId) -> Result<Run> {
        let mut read = self.read(vec![ShortId::from(id)]).await?;
        match read.pop().flatten() {
            Some(run) => Ok(run),
            // It went meanwhile, for its age or number.
            None if self.lock().history.get(ShortId::from(id)).is_none() => Err(not_found(id)),
            None => Err(Error::new(
                ErrorKind::DataLoss,
                "RUN_RECORD_DAMAGED",
                format!("what is written of run {id} cannot be read"),
            )),
        }
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

    /// Takes in a run that was started, or taken over.
    pub(super) fn insert(&self, run: Run) {
        let short = ShortId::from(run.id());
        let mut inner = self.lock();
        inner.starting.remove(&short);
        if let Some(request) = run.request() {
            inner.requests.started(request, run.id());
        }
        inner.known.insert(short, run);
    }

    /// Whether this run is in memory.
    pub(super) fn knows(&self, id: &RunId) -> bool {
        self.lock().known.contains_key(&ShortId::from(id))
    }

    /// What the history has of this run.
    pub(super) fn kept(&self, id: &RunId) -> Option<Kept> {
        self.lock().history.get(ShortId::from(id)).copied()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn not_found(id: &RunId) -> Error {
    Error::new(
        ErrorKind::NotFound,
        "RUN_NOT_FOUND",
        format!("no run {id} in this sandbox"),
    )
    .hint("ended runs are kept for a day, at most 1000 per sandbox")
}

fn unreachable() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "RUN_UNREACHABLE",
        "the run was started by an earlier daemon, and PID 1 of its sandbox cannot be asked what became of it",
    )
    .hint("the state of the sandbox says why")
}

#[cfg(test)]
mod tests;
