//! The seam between what a sandbox may do and how a host does it: all that actor, registry and recovery ask of a host.
//!
//! [`Host`](super::host::Host) does it; the tests' fake does it in memory, so that what is decided above the seam can be
//! tested by ten thousands of sequences. Nothing here decides anything.

use std::future::Future;
use std::sync::Arc;

use super::handle::Handle;
use super::id::SandboxId;
use super::idle::IdlePolicy;
use super::limits::{EffectiveLimits, LimitStatus, Limits, RequestedLimits, Shortfall};
use super::quota::Quotas;
use super::spec::Spec;
use crate::error::Result;
use crate::image::{Digest, ImageRef};
use crate::store::{Loaded, Record, Unused};

/// A host. Cheap to clone. A change that fails leaves things as they were, unless it says otherwise.
pub trait Runtime: Clone + Send + Sync + 'static {
    /// What runs get of a started sandbox.
    type Live: Clone + Send + Sync + 'static;
    /// What a living sandbox tells of the runs that an earlier daemon started.
    type Known: Send + 'static;
    /// Keeps an image from being removed.
    type Pin: Send + 'static;

    /// What a sandbox gets whose caller does not say.
    fn defaults(&self) -> Defaults;

    /// What each limit will come to, as far as that can be told before a start.
    fn expected(&self, limits: &Limits) -> EffectiveLimits;

    /// The digest of an image, and a guard by which it stays.
    fn resolve_image(
        &self,
        image: &ImageRef,
    ) -> impl Future<Output = Result<(Digest, Self::Pin)>> + Send;

    /// Makes all of a sandbox that lasts, its record last.
    fn create(&self, new: New) -> impl Future<Output = Result<Arc<Record>>> + Send;

    /// Takes a created sandbox back that could not be started. What cannot be taken back goes at the next load.
    fn uncreate(&self, record: Arc<Record>) -> impl Future<Output = ()> + Send;

    /// Starts a sandbox that has no processes.
    fn start(
        &self,
        record: Arc<Record>,
    ) -> impl Future<Output = Result<Started<Self::Live>>> + Send;

    /// Waits until PID 1 of a started sandbox has died.
    fn died(&self, live: &Self::Live) -> impl Future<Output = ()> + Send;

    /// Ends every process, frozen or not, and waits until they are gone. If it fails, nobody knows what still runs.
    fn end(&self, live: Self::Live, cause: Cause) -> impl Future<Output = Result<()>> + Send;

    /// Stops deadlines and takes all CPU from the runs. Settles in time, or is undone. Nothing may be spawned meanwhile.
    fn freeze(&self, live: Self::Live) -> impl Future<Output = Result<()>> + Send;

    /// Gives memory of a frozen sandbox back to the host; says how many bytes, where that can be had.
    fn reclaim(&self, live: Self::Live) -> impl Future<Output = Option<u64>> + Send;

    /// Lets the runs go on, and then their deadlines.
    fn thaw(&self, live: Self::Live) -> impl Future<Output = Result<()>> + Send;

    /// Has other limits held, or leaves them as they were. Those that hold from the next start on are told as they are.
    /// Without `live`, of a sandbox that is not started.
    fn limit(
        &self,
        live: Option<Self::Live>,
        relimit: Relimit,
    ) -> impl Future<Output = Result<Vec<LimitStatus>>> + Send;

    /// Writes the record of a sandbox that has one.
    fn write(&self, record: Arc<Record>) -> impl Future<Output = Result<()>> + Send;

    /// Remembers how long a sandbox has not been used, or that it is in use. Best effort.
    fn note_unused(&self, id: SandboxId, unused: Option<Unused>)
    -> impl Future<Output = ()> + Send;

    /// How long a sandbox has not been used, if that was remembered.
    fn unused(&self, id: SandboxId) -> impl Future<Output = Option<Unused>> + Send;

    /// Ends whatever a sandbox may have of which nobody knows what still runs in it.
    fn end_leftovers(&self, id: SandboxId) -> impl Future<Output = Result<()>> + Send;

    /// Ends what a sandbox without `Live` may still have, and takes its files out of sight, for good.
    fn put_away(&self, id: SandboxId) -> impl Future<Output = Result<()>> + Send;

    /// Takes a create that ended before its record out of sight.
    fn discard_unfinished(&self, id: SandboxId) -> impl Future<Output = Result<()>> + Send;

    /// Removes, in the background, what was put away, and then frees its uid range.
    fn remove(&self, id: SandboxId, uid_base: Option<u32>);

    /// Everything that an earlier daemon left, with uid ranges claimed. What was put away is being removed.
    fn load(&self) -> impl Future<Output = Result<Left>> + Send;

    /// How a sandbox of an earlier daemon is now. What is left of a dead one is ended; a frozen one is settled.
    fn condition(
        &self,
        record: Arc<Record>,
    ) -> impl Future<Output = Result<Condition<Self>>> + Send;

    /// Reads what was written of the runs of a sandbox that an earlier daemon left; where no process is left in it, says what
    /// became of those that lived.
    fn recall_runs(&self, handle: &Handle<Self::Live>) -> impl Future<Output = ()> + Send;

    /// Takes over the runs of an earlier daemon. Comes after `recall_runs`.
    fn adopt(
        &self,
        handle: &Handle<Self::Live>,
        live: Self::Live,
        known: Self::Known,
    ) -> impl Future<Output = Result<()>> + Send;
}

/// What a sandbox gets whose caller does not say.
#[derive(Debug, Clone)]
pub struct Defaults {
    /// Its image.
    pub image: String,
    /// Its limits.
    pub limits: Limits,
    /// Its idle policy.
    pub idle: IdlePolicy,
    /// What tenants have, and may have.
    pub quotas: Quotas,
}

/// What an earlier daemon left.
pub struct Left {
    /// Sandboxes, good and damaged.
    pub loaded: Vec<Loaded>,
    /// How many deletes it had begun that are being finished.
    pub finished: usize,
}

/// A sandbox that is to be made.
#[derive(Debug, Clone)]
pub struct New {
    /// Its id.
    pub id: SandboxId,
    /// What it is made from.
    pub spec: Spec,
    /// When it was asked for: milliseconds since 1970, UTC.
    pub created_at_ms: u64,
}

/// Limits that are to be held instead of others.
#[derive(Debug, Clone)]
pub struct Relimit {
    /// With the limits that were held.
    pub old: Arc<Record>,
    /// With those that are to be.
    pub new: Arc<Record>,
    /// Those that were asked for now.
    pub asked: RequestedLimits,
    /// Whether one of these may go unenforced.
    pub shortfall: Shortfall,
}

impl Relimit {
    /// The way back, at any price.
    pub(super) fn back(self) -> Self {
        Self {
            old: self.new,
            new: self.old,
            asked: RequestedLimits::default(),
            shortfall: Shortfall::Degrade,
        }
    }
}

/// A sandbox that was started.
pub struct Started<L> {
    /// What runs get of it.
    pub live: L,
    /// Its limits as they are held.
    pub limits: Vec<LimitStatus>,
}

/// Who decided that a sandbox's processes end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// A caller: live runs end as SANDBOX_STOPPED.
    Asked,
    /// A caller who deletes it: the same, and nobody wants its files any more.
    Deleted,
    /// Its holder died: live runs are LOST.
    HolderDied,
}

/// Whether the runs of a living sandbox get CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Motion {
    /// They run.
    Running,
    /// They are frozen.
    Frozen,
}

/// How a sandbox of an earlier daemon was found.
pub enum Condition<R: Runtime> {
    /// Its holder lives.
    Alive {
        /// What runs get of it, and its limits.
        started: Started<R::Live>,
        /// Whether it is frozen.
        motion: Motion,
        /// Its runs.
        known: R::Known,
        /// How many those are.
        runs: usize,
    },
    /// It has no processes.
    Stopped,
    /// It has processes that cannot be reached, for this reason.
    Unreachable(String),
    /// It cannot be used, for this reason.
    Damaged(String),
}
