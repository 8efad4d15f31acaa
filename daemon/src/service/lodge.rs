//! What answers the calls on this host.

use lodge_kernel::cgroup::Mode;

use super::calls::{NodeInfo, Service};
use super::node_disk::{self, NodeDisk};
use crate::doctor::{self, Report};
use crate::error::Result;
use crate::exec::Engine;
use crate::image::{Digest, ImageStore};
use crate::sandbox::handle::{Identity, View};
use crate::sandbox::id::Tenant;
use crate::sandbox::stats::{self, Stats};
use crate::sandbox::watch::{Watch, Watching};
use crate::sandbox::{
    Acquire, Acquired, Change, Filter, Handle, Paused, Registry, Resume, SandboxRef,
};
use crate::storage::HostDisk;

/// Lodge on this host. Cheap to clone.
#[derive(Clone)]
pub struct Lodge {
    registry: Registry,
}

impl Lodge {
    /// Serves these sandboxes.
    pub fn new(registry: Registry) -> Self {
        Self { registry }
    }
}

impl Service for Lodge {
    async fn acquire(&self, tenant: &Tenant, request: Acquire) -> Result<Acquired> {
        self.registry.acquire(tenant, &request).await
    }

    fn get(&self, tenant: &Tenant, sandbox: &SandboxRef) -> Result<View> {
        Ok(self.registry.get(tenant, sandbox)?.view())
    }

    fn list(
        &self,
        tenant: &Tenant,
        filter: &Filter,
        after: Option<&Identity>,
        limit: usize,
    ) -> Result<Vec<Handle>> {
        Ok(self.registry.list(tenant, filter, after, limit))
    }

    fn watch(&self, tenant: &Tenant, watching: Watching) -> Result<Watch> {
        self.registry.watch(tenant, watching)
    }

    async fn stats(&self, tenant: &Tenant, sandbox: &SandboxRef) -> Result<Stats> {
        let handle = self.registry.get(tenant, sandbox)?;
        stats::stats(self.registry.platform(), &handle).await
    }

    async fn update(&self, tenant: &Tenant, sandbox: &SandboxRef, change: Change) -> Result<View> {
        self.registry.get(tenant, sandbox)?.change(change).await
    }

    async fn pause(&self, tenant: &Tenant, sandbox: &SandboxRef) -> Result<Paused> {
        self.registry.get(tenant, sandbox)?.pause().await
    }

    async fn resume(&self, tenant: &Tenant, sandbox: &SandboxRef) -> Result<View> {
        let handle = self.registry.get(tenant, sandbox)?;
        handle.resume().await?;
        Ok(handle.view())
    }

    async fn start(&self, tenant: &Tenant, sandbox: &SandboxRef) -> Result<View> {
        let handle = self.registry.get(tenant, sandbox)?;
        handle.live(Resume::Auto).await?;
        Ok(handle.view())
    }

    async fn stop(&self, tenant: &Tenant, sandbox: &SandboxRef) -> Result<View> {
        let handle = self.registry.get(tenant, sandbox)?;
        handle.stop().await?;
        Ok(handle.view())
    }

    async fn delete(&self, tenant: &Tenant, sandbox: &SandboxRef) -> Result<()> {
        self.registry.get(tenant, sandbox)?.delete().await
    }

    fn sandbox(&self, tenant: &Tenant, sandbox: &SandboxRef) -> Result<Handle> {
        self.registry.get(tenant, sandbox)
    }

    fn engine(&self) -> &Engine {
        &self.registry.platform().engine
    }

    fn images(&self) -> &ImageStore {
        &self.registry.platform().images
    }

    fn image_uses(&self, image: &Digest) -> u32 {
        self.registry.uses(image)
    }

    fn image_uses_unknown(&self) -> u32 {
        self.registry.uses_unknown()
    }

    fn info(&self) -> NodeInfo {
        let platform = self.registry.platform();
        NodeInfo {
            features: Vec::new(),
            storage_driver: platform.storage.name(),
            cgroup_mode: match platform.cgroup_host.mode() {
                Mode::V2 => "v2",
                Mode::Hybrid => "hybrid",
                Mode::V1 => "v1",
            },
            default_image: platform.default_image.clone(),
        }
    }

    async fn disk(&self, sandboxes: Vec<Handle>) -> Result<NodeDisk> {
        let all = self.registry.all();
        let logs_bytes = all.iter().map(|one| one.runs().log_bytes()).sum();
        node_disk::look(self.registry.platform(), sandboxes, logs_bytes).await
    }

    async fn grow_pool(&self, bytes: u64) -> Result<HostDisk> {
        node_disk::grow(self.registry.platform(), bytes).await
    }

    async fn doctor(&self) -> Report {
        doctor::examine(self.registry.platform()).await
    }
}
