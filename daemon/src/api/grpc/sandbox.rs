//! `lodge.v1.SandboxService`: translates, and decides nothing.

use lodge_proto::v1 as wire;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

pub(super) use messages::state_to_wire;
pub use messages::{resume_from, sandbox_ref};
pub(super) use pages::{page_after, page_size, page_token};

use crate::error::Result;
use crate::sandbox::Handle;
use crate::sandbox::id::Tenant;
use crate::service::Service;
use messages::{acquire_from, change_from, filter_from, to_wire};
use pages::page_of;

mod messages;
mod pages;
mod stats;
mod watching;

/// `lodge.v1.SandboxService`.
#[derive(Clone)]
pub struct SandboxServer<S>(S, watch::Receiver<()>);

impl<S: Service> SandboxServer<S> {
    /// Serves `service` until `draining` has no sender left: watchers are told then that the daemon ends.
    pub fn new(service: S, draining: watch::Receiver<()>) -> Self {
        Self(service, draining)
    }
}

#[tonic::async_trait]
impl<S: Service> wire::sandbox_service_server::SandboxService for SandboxServer<S> {
    async fn acquire(
        &self,
        request: Request<wire::AcquireRequest>,
    ) -> Result<Response<wire::AcquireResponse>, Status> {
        let request = acquire_from(request.into_inner())?;
        let acquired = self.0.acquire(&Tenant::default(), request).await?;
        Ok(Response::new(wire::AcquireResponse {
            sandbox: Some(to_wire(acquired.sandbox)),
            created: acquired.created,
        }))
    }

    async fn get(
        &self,
        request: Request<wire::GetSandboxRequest>,
    ) -> Result<Response<wire::Sandbox>, Status> {
        let sandbox = sandbox_ref(request.into_inner().sandbox)?;
        Ok(Response::new(to_wire(
            self.0.get(&Tenant::default(), &sandbox)?,
        )))
    }

    async fn list(
        &self,
        request: Request<wire::ListSandboxesRequest>,
    ) -> Result<Response<wire::ListSandboxesResponse>, Status> {
        let request = request.into_inner();
        let size = page_size(request.page_size)?;
        let after = page_after(&request.page_token)?;
        let filter = filter_from(request.labels, &request.states)?;
        // One more than asked for tells whether there is another page.
        let found = self
            .0
            .list(&Tenant::default(), &filter, after.as_ref(), size + 1)?;
        Ok(Response::new(page_of(found.iter().map(Handle::view), size)))
    }

    async fn start(
        &self,
        request: Request<wire::StartSandboxRequest>,
    ) -> Result<Response<wire::Sandbox>, Status> {
        let sandbox = sandbox_ref(request.into_inner().sandbox)?;
        Ok(Response::new(to_wire(
            self.0.start(&Tenant::default(), &sandbox).await?,
        )))
    }

    async fn stop(
        &self,
        request: Request<wire::StopSandboxRequest>,
    ) -> Result<Response<wire::Sandbox>, Status> {
        let sandbox = sandbox_ref(request.into_inner().sandbox)?;
        Ok(Response::new(to_wire(
            self.0.stop(&Tenant::default(), &sandbox).await?,
        )))
    }

    async fn delete(
        &self,
        request: Request<wire::DeleteSandboxRequest>,
    ) -> Result<Response<wire::DeleteSandboxResponse>, Status> {
        let sandbox = sandbox_ref(request.into_inner().sandbox)?;
        self.0.delete(&Tenant::default(), &sandbox).await?;
        Ok(Response::new(wire::DeleteSandboxResponse {}))
    }

    async fn update(
        &self,
        request: Request<wire::UpdateSandboxRequest>,
    ) -> Result<Response<wire::Sandbox>, Status> {
        let mut request = request.into_inner();
        let sandbox = sandbox_ref(request.sandbox.take())?;
        let change = change_from(request)?;
        Ok(Response::new(to_wire(
            self.0.update(&Tenant::default(), &sandbox, change).await?,
        )))
    }

    async fn pause(
        &self,
        request: Request<wire::PauseSandboxRequest>,
    ) -> Result<Response<wire::PauseSandboxResponse>, Status> {
        let sandbox = sandbox_ref(request.into_inner().sandbox)?;
        let paused = self.0.pause(&Tenant::default(), &sandbox).await?;
        Ok(Response::new(wire::PauseSandboxResponse {
            sandbox: Some(to_wire(paused.sandbox)),
            reclaimed_bytes: paused.reclaimed_bytes,
        }))
    }

    async fn resume(
        &self,
        request: Request<wire::ResumeSandboxRequest>,
    ) -> Result<Response<wire::Sandbox>, Status> {
        let sandbox = sandbox_ref(request.into_inner().sandbox)?;
        Ok(Response::new(to_wire(
            self.0.resume(&Tenant::default(), &sandbox).await?,
        )))
    }

    type WatchStream = watching::Events;

    async fn watch(
        &self,
        request: Request<wire::WatchSandboxesRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let watching = watching::watching_from(request.into_inner())?;
        let watch = self.0.watch(&Tenant::default(), watching)?;
        Ok(Response::new(watching::Events::new(watch, self.1.clone())))
    }

    async fn stats(
        &self,
        request: Request<wire::SandboxStatsRequest>,
    ) -> Result<Response<wire::SandboxStats>, Status> {
        let sandbox = sandbox_ref(request.into_inner().sandbox)?;
        let stats = self.0.stats(&Tenant::default(), &sandbox).await?;
        Ok(Response::new(stats::stats_to_wire(stats)))
    }
}
