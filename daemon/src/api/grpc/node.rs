//! `lodge.v1.NodeService`: translates, and decides nothing.

use lodge_proto::v1 as wire;
use tonic::{Request, Response, Status};

use super::sandbox::{page_after, page_size, page_token};
use crate::doctor::{Check, Outcome};
use crate::sandbox::Filter;
use crate::sandbox::id::Tenant;
use crate::service::Service;
use disk::{disk_to_wire, host_to_wire};

mod disk;

/// The API's version.
const API_VERSION: &str = "1.0";
/// The oldest client version that works with this daemon.
const MIN_CLIENT_VERSION: &str = "0.1.0";

/// `lodge.v1.NodeService`.
#[derive(Clone)]
pub struct NodeServer<S>(S);

impl<S: Service> NodeServer<S> {
    /// Serves `service`.
    pub fn new(service: S) -> Self {
        Self(service)
    }
}

#[tonic::async_trait]
impl<S: Service> wire::node_service_server::NodeService for NodeServer<S> {
    async fn info(
        &self,
        _: Request<wire::InfoRequest>,
    ) -> Result<Response<wire::InfoResponse>, Status> {
        let info = self.0.info();
        Ok(Response::new(wire::InfoResponse {
            daemon_version: env!("CARGO_PKG_VERSION").to_owned(),
            api_version: API_VERSION.to_owned(),
            min_client_version: MIN_CLIENT_VERSION.to_owned(),
            features: info.features,
            storage_driver: info.storage_driver.to_owned(),
            cgroup_mode: info.cgroup_mode.to_owned(),
            default_image: info.default_image,
        }))
    }

    async fn doctor(
        &self,
        _: Request<wire::DoctorRequest>,
    ) -> Result<Response<wire::DoctorResponse>, Status> {
        let report = self.0.doctor().await;
        let ok = report.ok();
        let checks = report.checks.into_iter().map(to_wire).collect();
        Ok(Response::new(wire::DoctorResponse { checks, ok }))
    }

    async fn disk(
        &self,
        request: Request<wire::DiskRequest>,
    ) -> Result<Response<wire::DiskResponse>, Status> {
        let request = request.into_inner();
        let size = page_size(request.page_size)?;
        let after = page_after(&request.page_token)?;
        // One more than asked for tells whether there is another page.
        let mut found = self.0.list(
            &Tenant::default(),
            &Filter::default(),
            after.as_ref(),
            size + 1,
        )?;
        let more = found.len() > size;
        found.truncate(size);
        let last = found.last().filter(|_| more);
        let next_page_token = last.map(|handle| page_token(handle.identity()));
        let disk = self.0.disk(found).await?;
        Ok(Response::new(wire::DiskResponse {
            next_page_token: next_page_token.unwrap_or_default(),
            ..disk_to_wire(disk)
        }))
    }

    async fn grow_pool(
        &self,
        request: Request<wire::GrowPoolRequest>,
    ) -> Result<Response<wire::GrowPoolResponse>, Status> {
        let host = self.0.grow_pool(request.into_inner().bytes).await?;
        Ok(Response::new(wire::GrowPoolResponse {
            host: Some(host_to_wire(host)),
        }))
    }
}

fn to_wire(check: Check) -> wire::Check {
    let status = match check.outcome {
        Outcome::Ok => wire::CheckStatus::Ok,
        Outcome::Warn => wire::CheckStatus::Warn,
        Outcome::Fail => wire::CheckStatus::Fail,
    };
    wire::Check {
        name: check.name.to_owned(),
        status: status.into(),
        detail: check.detail,
        hint: check.hint,
    }
}
