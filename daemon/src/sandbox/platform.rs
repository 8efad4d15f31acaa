//! What sandboxes need of the host, opened once at the start and shared by all of them.

use std::path::PathBuf;
use std::sync::Arc;

use lodge_kernel::cgroup;
use tokio::sync::Semaphore;

use super::idle::IdlePolicy;
use super::limits::{EffectiveLimits, Limits};
use super::uid_range::UidRanges;
use crate::exec::Engine;
use crate::holder::Launcher;
use crate::image::ImageStore;
use crate::storage::Storage;
use crate::store::Store;

/// Creates and starts at once. Each takes a thread and a few milliseconds of work in the kernel; more at once only wait
/// for the same locks there.
pub const STARTS_AT_ONCE: usize = 16;
/// The same for creates, which may have to wait for a uid range: those that end sandboxes, and so free one, do not wait for them.
pub const CREATES_AT_ONCE: usize = 16;

/// What sandboxes need of the host.
pub struct Platform {
    /// Records.
    pub store: Store,
    /// Files.
    pub storage: Arc<dyn Storage>,
    /// Images.
    pub images: ImageStore,
    /// Runs; told of what an earlier daemon left.
    pub engine: Engine,
    /// What forks holders.
    pub launcher: Launcher,
    /// How the host has its cgroups.
    pub cgroup_host: cgroup::Host,
    /// The cgroup above all sandboxes.
    pub cgroup_parent: cgroup::Parent,
    /// Its name.
    pub cgroup_parent_name: String,
    /// The mark of our state directory on what lies outside of it.
    pub owner: String,
    /// Host uids.
    pub uids: UidRanges,
    /// Where holders listen for the next daemon.
    pub holders_dir: PathBuf,
    /// Limits of a sandbox that names none.
    pub default_limits: Limits,
    /// Idle policy of a sandbox that names none.
    pub default_idle: IdlePolicy,
    /// Image of a sandbox that names none.
    pub default_image: String,
    /// Bounds what is being started.
    pub starts: Semaphore,
    /// Bounds what is being created.
    pub creates: Semaphore,
}

impl Platform {
    /// What each limit will come to on this host, as far as that can be told before a start.
    pub fn expected(&self, limits: &Limits) -> EffectiveLimits {
        let by_controller = |controller: cgroup::Controller, value| {
            if self.cgroup_host.has(controller) {
                Ok(value)
            } else {
                Err(format!("this host has no {controller} controller"))
            }
        };
        EffectiveLimits {
            memory_bytes: by_controller(cgroup::Controller::Memory, limits.memory_bytes),
            pids: by_controller(cgroup::Controller::Pids, limits.pids),
            cpu_millis: by_controller(cgroup::Controller::Cpu, limits.cpu_millis),
            disk_bytes: Err(self.storage.no_disk_limit().unwrap_or_default().to_owned()),
            open_files: Ok(limits.open_files),
            shm_bytes: Ok(limits.shm_bytes),
        }
    }
}
