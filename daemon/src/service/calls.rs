//! The calls of Lodge.

use std::future::Future;

use super::node_disk::NodeDisk;
use crate::doctor::Report;
use crate::error::Result;
use crate::exec::Engine;
use crate::image::{Digest, ImageStore};
use crate::sandbox::handle::{Identity, View};
use crate::sandbox::id::Tenant;
use crate::sandbox::stats::Stats;
use crate::sandbox::watch::{Watch, Watching};
use crate::sandbox::{Acquire, Acquired, Change, Filter, Handle, Paused, SandboxRef};
use crate::storage::HostDisk;

/// What a daemon is and can do.
#[derive(Debug, Clone)]
pub struct NodeInfo {
    /// What it can do beyond version 1, by name.
    pub features: Vec<String>,
    /// The storage driver's name.
    pub storage_driver: &'static str,
    /// How cgroups are mounted: `v2`, `hybrid` or `v1`.
    pub cgroup_mode: &'static str,
    /// The default image's name.
    pub default_image: String,
}

/// The calls of Lodge. Cheap to clone.
pub trait Service: Clone + Send + Sync + 'static {
    /// Gets the sandbox of this name or creates it, and starts it. Race-free.
    fn acquire(
        &self,
        tenant: &Tenant,
        request: Acquire,
    ) -> impl Future<Output = Result<Acquired>> + Send;

    /// One sandbox. Never wakes it.
    fn get(&self, tenant: &Tenant, sandbox: &SandboxRef) -> Result<View>;

    /// The tenant's sandboxes that `filter` means, after `after`, in the order of name and id, at most `limit`. Never
    /// wakes one.
    fn list(
        &self,
        tenant: &Tenant,
        filter: &Filter,
        after: Option<&Identity>,
        limit: usize,
    ) -> Result<Vec<Handle>>;

    /// Begins to watch sandboxes. Never wakes one, and is no activity.
    fn watch(&self, tenant: &Tenant, watching: Watching) -> Result<Watch>;

    /// What a sandbox uses. Never wakes it, and is no activity.
    fn stats(
        &self,
        tenant: &Tenant,
        sandbox: &SandboxRef,
    ) -> impl Future<Output = Result<Stats>> + Send;

    /// Changes limits, idle policy or labels. Never wakes it.
    fn update(
        &self,
        tenant: &Tenant,
        sandbox: &SandboxRef,
        change: Change,
    ) -> impl Future<Output = Result<View>> + Send;

    /// Freezes a running sandbox.
    fn pause(
        &self,
        tenant: &Tenant,
        sandbox: &SandboxRef,
    ) -> impl Future<Output = Result<Paused>> + Send;

    /// Thaws a frozen sandbox.
    fn resume(
        &self,
        tenant: &Tenant,
        sandbox: &SandboxRef,
    ) -> impl Future<Output = Result<View>> + Send;

    /// Starts a stopped sandbox.
    fn start(
        &self,
        tenant: &Tenant,
        sandbox: &SandboxRef,
    ) -> impl Future<Output = Result<View>> + Send;

    /// Ends every process of a sandbox.
    fn stop(
        &self,
        tenant: &Tenant,
        sandbox: &SandboxRef,
    ) -> impl Future<Output = Result<View>> + Send;

    /// Ends every process of a sandbox and removes its files.
    fn delete(
        &self,
        tenant: &Tenant,
        sandbox: &SandboxRef,
    ) -> impl Future<Output = Result<()>> + Send;

    /// The sandbox in which something is to be run or looked at. Never wakes it.
    fn sandbox(&self, tenant: &Tenant, sandbox: &SandboxRef) -> Result<Handle>;

    /// What runs commands.
    fn engine(&self) -> &Engine;

    /// The images. Their calls block.
    fn images(&self) -> &ImageStore;

    /// Sandboxes, of all tenants, that are made from this image.
    fn image_uses(&self, image: &Digest) -> u32;

    /// Sandboxes, of all tenants, of which it is not known what they are made from.
    fn image_uses_unknown(&self) -> u32;

    /// What this daemon is and can do.
    fn info(&self) -> NodeInfo;

    /// What is stored where, and how much of it each of these sandboxes has. Never wakes one.
    fn disk(&self, sandboxes: Vec<Handle>) -> impl Future<Output = Result<NodeDisk>> + Send;

    /// Gives the pool this size, in bytes.
    fn grow_pool(&self, bytes: u64) -> impl Future<Output = Result<HostDisk>> + Send;

    /// Checks the host and boots a probe sandbox.
    fn doctor(&self) -> impl Future<Output = Report> + Send;
}
