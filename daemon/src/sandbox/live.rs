//! What a started sandbox gives to its runs. Cheap to clone: the hot path of a run takes one and needs no task.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use lodge_kernel::cgroup::{self, SandboxGroup};

use super::disk::Disk;
use crate::holder::Holder;
use crate::sandbox::id::SandboxId;

/// Where the kernel tells of want of memory, until somebody watches it; nothing where it ends whole runs by itself.
#[derive(Clone, Default)]
pub struct OomEvents(Arc<Mutex<Option<OwnedFd>>>);

impl OomEvents {
    /// Of a sandbox's group.
    pub(super) fn of(group: &SandboxGroup) -> cgroup::Result<Self> {
        let events = group.oom_events()?;
        Ok(Self(Arc::new(Mutex::new(events))))
    }

    /// Gives it to who watches; only once.
    pub(crate) fn take(&self) -> Option<OwnedFd> {
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        events.take()
    }
}

/// A started sandbox. It may die at any moment: whoever uses one learns of it from the holder.
#[derive(Clone)]
pub struct Live {
    /// Which sandbox.
    pub id: SandboxId,
    /// Its PID 1.
    pub holder: Holder,
    /// The host uid that is 0 inside; [`RANGE_LEN`](super::uid_range::RANGE_LEN) ids from there on are its.
    pub uid_base: u32,
    /// Its cgroup, where each run gets a leaf.
    pub cgroup: Arc<SandboxGroup>,
    /// Variables for every run: the image's, then the sandbox's own, each name once.
    pub env: Arc<Vec<(String, String)>>,
    /// User that runs get; empty takes `user` where the image has one, else root.
    pub user: String,
    /// Working directory that runs get; empty takes the user's home.
    pub workdir: String,
    /// Where the logs of runs go: `<state>/sandboxes/<id>/runs`.
    pub runs_dir: PathBuf,
    /// The limit on processes, for messages that name it; all clones see a change.
    pub pids_limit: Arc<AtomicU64>,
    /// Tells of want of memory.
    pub oom: OomEvents,
    /// Its files.
    pub disk: Disk,
}
