//! What sandboxes need of the host, opened once at the start and shared by all of them.

use std::path::PathBuf;
use std::sync::Arc;

use lodge_kernel::cgroup;
use tokio::sync::Semaphore;

use super::idle::IdlePolicy;
use super::limits::{EffectiveLimits, Limits};
use super::quota::Quotas;
use super::uid_range::UidRanges;
use crate::error::{Error, Result};
use crate::exec::Engine;
use crate::holder::Launcher;
use crate::image::ImageStore;
use crate::storage::{Choice, Storage};
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
    /// Why they are this driver's.
    pub storage_choice: Choice,
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
    /// What the host has.
    pub room: cgroup::Room,
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
    /// What tenants have, and may have.
    pub quotas: Quotas,
    /// Image of a sandbox that names none.
    pub default_image: String,
    /// Bounds what is being started.
    pub starts: Semaphore,
    /// Bounds what is being created.
    pub creates: Semaphore,
}

impl Platform {
    /// Does work that blocks on a thread for that. `failed` says what is told of a panic.
    pub async fn on_thread<T: Send + 'static>(
        self: &Arc<Self>,
        failed: &'static str,
        work: impl FnOnce(&Arc<Self>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let platform = Arc::clone(self);
        tokio::task::spawn_blocking(move || work(&platform))
            .await
            .unwrap_or_else(|error| {
                Err(Error::internal("INTERNAL", failed, error).hint("the daemon's log says where"))
            })
    }

    /// What each limit will come to on this host, as far as that can be told before a start.
    pub fn expected(&self, limits: &Limits) -> EffectiveLimits {
        let by_controller = |controller: cgroup::Controller, value| {
            if self.cgroup_host.has(controller) {
                Ok(value)
            } else {
                Err(format!("this host has no {controller} controller"))
            }
        };
        let abilities = self.storage.abilities();
        let by_storage = |able: Result<(), &str>, value| {
            able.map(|()| value).map_err(|why| {
                let driver = self.storage.name();
                format!("unsupported by the {driver} storage driver: {why}")
            })
        };
        EffectiveLimits {
            memory_bytes: by_controller(cgroup::Controller::Memory, limits.memory_bytes),
            pids: by_controller(cgroup::Controller::Pids, limits.pids),
            cpu_millis: by_controller(cgroup::Controller::Cpu, limits.cpu_millis),
            disk_bytes: by_storage(abilities.limit_bytes, limits.disk_bytes),
            open_files: Ok(limits.open_files),
            shm_bytes: Ok(limits.shm_bytes),
            inodes: by_storage(abilities.limit_inodes, limits.inodes),
        }
    }
}
