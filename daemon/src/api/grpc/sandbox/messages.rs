//! Messages of `lodge.v1.SandboxService` as words of the domain, and back.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, UNIX_EPOCH};

use lodge_proto::v1 as wire;

use crate::error::{Error, Result};
use crate::image::ImageRef;
use crate::sandbox::confinement::Confine;
use crate::sandbox::handle::View;
use crate::sandbox::id::{SandboxId, SandboxName};
use crate::sandbox::idle::{After, IdleChange, IdlePolicy};
use crate::sandbox::limits::{Enforcement, LimitStatus, RequestedLimits, Shortfall};
use crate::sandbox::spec::check_labels;
use crate::sandbox::state::State;
use crate::sandbox::{Acquire, Change, Filter, Resume, SandboxRef};

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

/// What a call does to a sandbox that is frozen.
pub fn resume_from(mode: i32) -> Result<Resume> {
    match wire::ResumeMode::try_from(mode) {
        Ok(wire::ResumeMode::Unspecified | wire::ResumeMode::Auto) => Ok(Resume::Auto),
        Ok(wire::ResumeMode::Error) => Ok(Resume::Error),
        Err(_) => Err(
            Error::invalid("INVALID_RESUME_MODE", format!("resume is {mode}"))
                .hint("it is RESUME_MODE_AUTO or RESUME_MODE_ERROR"),
        ),
    }
}

pub(super) fn acquire_from(request: wire::AcquireRequest) -> Result<Acquire> {
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
        shortfall: shortfall_from(request.allow_degraded),
        idle: idle_from(request.idle)?,
        confine: Confine {
            no_new_privileges: request.no_new_privileges,
            read_only_root: request.read_only_root,
        },
        resume: resume_from(request.resume)?,
    })
}

/// Which sandboxes a listing is about.
pub(super) fn filter_from(labels: HashMap<String, String>, states: &[i32]) -> Result<Filter> {
    let labels = sorted(labels);
    check_labels(&labels)?;
    let states = states.iter().map(|state| state_from(*state));
    Ok(Filter {
        labels,
        states: states.collect::<Result<_>>()?,
    })
}

fn state_from(state: i32) -> Result<State> {
    match wire::SandboxState::try_from(state) {
        Ok(wire::SandboxState::Creating) => Ok(State::Creating),
        Ok(wire::SandboxState::Running) => Ok(State::Running),
        Ok(wire::SandboxState::Frozen) => Ok(State::Frozen),
        Ok(wire::SandboxState::Stopped) => Ok(State::Stopped),
        Ok(wire::SandboxState::Damaged) => Ok(State::Damaged),
        Ok(wire::SandboxState::Deleting) => Ok(State::Deleting),
        Ok(wire::SandboxState::Unspecified) | Err(_) => Err(Error::invalid(
            "INVALID_STATE",
            format!("states has {state}, which is no state of a sandbox"),
        )),
    }
}

/// What an update changes. Its reference has been taken out.
pub(super) fn change_from(request: wire::UpdateSandboxRequest) -> Result<Change> {
    Ok(Change {
        limits: request.limits.map(limits_from).unwrap_or_default(),
        shortfall: shortfall_from(request.allow_degraded),
        idle: idle_from(request.idle)?,
        set_labels: sorted(request.set_labels),
        remove_labels: request.remove_labels,
    })
}

fn shortfall_from(allow_degraded: bool) -> Shortfall {
    if allow_degraded {
        Shortfall::Degrade
    } else {
        Shortfall::Refuse
    }
}

fn idle_from(idle: Option<wire::IdlePolicy>) -> Result<IdleChange> {
    let after = |time: Option<prost_types::Duration>| {
        time.map(|time| After::parse(time.seconds, time.nanos))
            .transpose()
    };
    let idle = idle.unwrap_or_default();
    Ok(IdleChange {
        freeze: after(idle.freeze_after)?,
        stop: after(idle.stop_after)?,
        delete: after(idle.delete_after)?,
    })
}

fn idle_to_wire(idle: IdlePolicy) -> wire::IdlePolicy {
    let time = |after: After| after.time().try_into().ok();
    wire::IdlePolicy {
        freeze_after: time(idle.freeze),
        stop_after: time(idle.stop),
        delete_after: time(idle.delete),
    }
}

fn limits_from(limits: wire::Limits) -> RequestedLimits {
    RequestedLimits {
        memory_bytes: limits.memory_bytes,
        pids: limits.pids,
        cpu_millis: limits.cpu_millis,
        disk_bytes: limits.disk_bytes,
        open_files: limits.open_files,
        shm_bytes: limits.shm_bytes,
        inodes: limits.inodes,
    }
}

fn sorted(map: HashMap<String, String>) -> BTreeMap<String, String> {
    map.into_iter().collect()
}

pub(super) fn to_wire(view: View) -> wire::Sandbox {
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
        idle: view.idle.map(idle_to_wire),
        idle_for: view.idle_for.and_then(|idle| idle.try_into().ok()),
        open_streams: view.open_streams,
        no_new_privileges: view.confinement.no_new_privileges,
        read_only_root: view.confinement.read_only_root,
    }
}

pub(in crate::api::grpc) fn state_to_wire(state: State) -> wire::SandboxState {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_without_a_sandbox_is_refused() {
        assert!(sandbox_ref(None).is_err());
        assert!(sandbox_ref(Some(wire::SandboxRef { r#ref: None })).is_err());
    }
}
