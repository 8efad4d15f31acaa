//! `lodge.v1.SandboxService`: translates, and decides nothing.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, UNIX_EPOCH};

use lodge_proto::v1 as wire;
use tonic::{Request, Response, Status};

use crate::error::{Error, Result};
use crate::image::ImageRef;
use crate::sandbox::handle::{Identity, View};
use crate::sandbox::id::{SandboxId, SandboxName, Tenant};
use crate::sandbox::limits::{Enforcement, LimitStatus, RequestedLimits, Shortfall};
use crate::sandbox::state::State;
use crate::sandbox::{Acquire, SandboxRef};
use crate::service::Service;

/// Sandboxes on a page if the caller does not say.
const PAGE_DEFAULT: i32 = 100;
/// Sandboxes on a page at most.
const PAGE_MAX: i32 = 1000;

/// `lodge.v1.SandboxService`.
#[derive(Clone)]
pub struct SandboxServer<S>(S);

impl<S: Service> SandboxServer<S> {
    /// Serves `service`.
    pub fn new(service: S) -> Self {
        Self(service)
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
        // One more than asked for tells whether there is another page.
        let mut views = self.0.list(&Tenant::default(), after.as_ref(), size + 1)?;
        let more = views.len() > size;
        views.truncate(size);
        let next_page_token = match views.last() {
            Some(last) if more => page_token(&last.identity),
            _ => String::new(),
        };
        let sandboxes = views.into_iter().map(to_wire).collect();
        Ok(Response::new(wire::ListSandboxesResponse {
            sandboxes,
            next_page_token,
        }))
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
        _request: Request<wire::UpdateSandboxRequest>,
    ) -> Result<Response<wire::Sandbox>, Status> {
        Err(not_yet("Update").into())
    }

    async fn pause(
        &self,
        _request: Request<wire::PauseSandboxRequest>,
    ) -> Result<Response<wire::PauseSandboxResponse>, Status> {
        Err(not_yet("Pause").into())
    }

    async fn resume(
        &self,
        _request: Request<wire::ResumeSandboxRequest>,
    ) -> Result<Response<wire::Sandbox>, Status> {
        Err(not_yet("Resume").into())
    }

    type WatchStream = tokio_stream::Empty<Result<wire::SandboxEvent, Status>>;

    async fn watch(
        &self,
        _request: Request<wire::WatchSandboxesRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Err(not_yet("Watch").into())
    }

    async fn stats(
        &self,
        _request: Request<wire::SandboxStatsRequest>,
    ) -> Result<Response<wire::SandboxStats>, Status> {
        Err(not_yet("Stats").into())
    }
}

/// The error of a call whose answer is still being built.
pub(super) fn not_yet(call: &str) -> Error {
    Error::new(
        crate::error::ErrorKind::Unsupported,
        "NOT_YET",
        format!("{call} is not there yet"),
    )
}

/// The sandbox that a request names.
pub fn sandbox_ref(sandbox: Option<wire::SandboxRef>) -> Result<SandboxRef> {
    match sandbox.and_then(|sandbox| sandbox.r#ref) {
        Some(wire::sandbox_ref::Ref::Name(name)) => {
            Ok(SandboxRef::Name(SandboxName::parse(&name)?))
        }
        Some(wire::sandbox_ref::Ref::Id(id)) => Ok(SandboxRef::Id(SandboxId::parse(&id)?)),
        None => Err(
            Error::invalid("MISSING_SANDBOX", "the request names no sandbox")
                .hint("set its name or its id"),
        ),
    }
}

fn acquire_from(request: wire::AcquireRequest) -> Result<Acquire> {
    let image = match request.image.as_str() {
        "" => None,
        text => Some(ImageRef::parse(text)?),
    };
    Ok(Acquire {
        name: SandboxName::parse(&request.name)?,
        image,
        env: sorted(request.env),
        labels: sorted(request.labels),
        limits: request.limits.map(limits_from).unwrap_or_default(),
        shortfall: if request.allow_degraded {
            Shortfall::Degrade
        } else {
            Shortfall::Refuse
        },
    })
}

fn limits_from(limits: wire::Limits) -> RequestedLimits {
    RequestedLimits {
        memory_bytes: limits.memory_bytes,
        pids: limits.pids,
        cpu_millis: limits.cpu_millis,
        disk_bytes: limits.disk_bytes,
        open_files: limits.open_files,
        shm_bytes: limits.shm_bytes,
    }
}

fn sorted(map: HashMap<String, String>) -> BTreeMap<String, String> {
    map.into_iter().collect()
}

fn to_wire(view: View) -> wire::Sandbox {
    let created = UNIX_EPOCH + Duration::from_millis(view.created_at_ms);
    wire::Sandbox {
        id: view.identity.id.into(),
        name: view.identity.name.into(),
        tenant: view.identity.tenant.into(),
        state: state_to_wire(view.state).into(),
        state_reason: view.reason,
        image: view.image,
        image_digest: view.image_digest,
        created_at: (view.created_at_ms > 0).then(|| created.into()),
        labels: view.labels.into_iter().collect(),
        env: view.env.into_iter().collect(),
        limits: view.limits.into_iter().map(limit_to_wire).collect(),
        hostname: view.hostname,
        live_runs: view.live_runs,
        ..Default::default()
    }
}

fn state_to_wire(state: State) -> wire::SandboxState {
    match state {
        State::Creating => wire::SandboxState::Creating,
        State::Running => wire::SandboxState::Running,
        State::Frozen => wire::SandboxState::Frozen,
        State::Stopped => wire::SandboxState::Stopped,
        State::Damaged => wire::SandboxState::Damaged,
        State::Deleting => wire::SandboxState::Deleting,
    }
}

fn limit_to_wire(limit: LimitStatus) -> wire::LimitStatus {
    let (enforcement, reason) = match limit.enforcement {
        Enforcement::Enforced => (wire::Enforcement::Enforced, String::new()),
        Enforcement::Degraded(why) => (wire::Enforcement::Degraded, why),
        Enforcement::Unsupported(why) => (wire::Enforcement::Unsupported, why),
    };
    wire::LimitStatus {
        name: limit.name.to_owned(),
        requested: limit.requested,
        effective: limit
            .effective
            .map(|value| i64::try_from(value).unwrap_or(i64::MAX)),
        enforcement: enforcement.into(),
        reason,
    }
}

fn page_size(asked: i32) -> Result<usize> {
    match asked {
        0 => Ok(PAGE_DEFAULT.unsigned_abs() as usize),
        1..=PAGE_MAX => Ok(asked.unsigned_abs() as usize),
        _ => Err(Error::invalid(
            "INVALID_PAGE_SIZE",
            format!("page_size is {asked}; it is 0 for the default, or 1 to {PAGE_MAX}"),
        )),
    }
}

/// The last sandbox of the page before: `<id>:<name>`. A forged one only begins the next page elsewhere.
fn page_token(last: &Identity) -> String {
    format!("{}:{}", last.id, last.name)
}

fn page_after(token: &str) -> Result<Option<Identity>> {
    if token.is_empty() {
        return Ok(None);
    }
    let parsed = token.split_once(':').and_then(|(id, name)| {
        let (id, name) = (SandboxId::parse(id).ok()?, SandboxName::parse(name).ok()?);
        Some(Identity {
            id,
            tenant: Tenant::default(),
            name,
        })
    });
    parsed.map(Some).ok_or_else(|| {
        Error::invalid(
            "INVALID_PAGE_TOKEN",
            "page_token is not one that a listing gave",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_token_is_read_back_and_a_forged_one_is_refused() {
        let last = Identity {
            id: SandboxId::random(),
            tenant: Tenant::default(),
            name: SandboxName::parse("a.b").expect("valid"),
        };
        assert_eq!(
            page_after(&page_token(&last)).expect("own token"),
            Some(last)
        );
        for forged in [":", "x", "../../etc:passwd", "aaaaaaaaaaaaaaaaaaaa:-rf"] {
            assert!(page_after(forged).is_err(), "{forged:?} was accepted");
        }
    }

    #[test]
    fn page_sizes_out_of_bounds_are_refused() {
        assert_eq!(page_size(0).expect("default"), 100);
        for size in [-1, i32::MIN, 1001, i32::MAX] {
            assert!(page_size(size).is_err(), "{size} was accepted");
        }
    }

    #[test]
    fn a_request_without_a_sandbox_is_refused() {
        assert!(sandbox_ref(None).is_err());
        assert!(sandbox_ref(Some(wire::SandboxRef { r#ref: None })).is_err());
    }
}
