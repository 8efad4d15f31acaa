//! What an earlier daemon left: every sandbox is listed again. One whose holder lives goes on; what is left of a dead one
//! is ended, and its next run starts it. One whose holder lives and cannot be talked to is damaged: its processes stay as
//! they are until it is stopped or deleted. Nothing that one sandbox left keeps the others from being served.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::actor::idling::Watchman;
use super::actor::{Actor, Remedy, Request};
use super::handle::{Handle, Identity, Status};
use super::id::{SandboxId, SandboxName};
use super::limits::{self, LimitStatus, Shortfall};
use super::quota::Promised;
use super::registry::Registry;
use super::report::Recovery;
use super::runtime::{Condition, Left, Motion, Runtime, Started};
use super::state::State;
use crate::error::Result;
use crate::store::{Damage, Loaded, Pace, Record};

/// Holders asked at once. Each answers in less than a millisecond, or is given up on after some seconds: so many at once
/// that a node full of silent ones is served long before the unit's start would time out.
const ASKED_AT_ONCE: usize = 256;

/// Fills the registry from what is there. Nothing is served before this ends.
pub(super) async fn recover<R: Runtime>(registry: &Registry<R>) -> Result<Recovery> {
    let begun = Instant::now();
    let Left { loaded, finished } = registry.runtime().load().await?;
    let unfinished = |one: &&Loaded| matches!(one, Loaded::Unfinished(_));
    let mut recovery = Recovery {
        finished,
        undone: loaded.iter().filter(unfinished).count(),
        ..Recovery::default()
    };
    let mut tasks = JoinSet::new();
    for one in loaded {
        if tasks.len() >= ASKED_AT_ONCE {
            tasks.join_next().await;
        }
        tasks.spawn(take_up_or_list(registry.clone(), one));
    }
    while tasks.join_next().await.is_some() {}
    for handle in registry.table().all() {
        recovery.count(&handle.view());
    }
    recovery.took = begun.elapsed();
    recovery.log();
    Ok(recovery)
}

/// Takes a sandbox up; if that panics, the sandbox is damaged and the others go on.
async fn take_up_or_list<R: Runtime>(registry: Registry<R>, loaded: Loaded) {
    let (id, damage) = damage_of(&loaded);
    let fault = tokio::spawn(take_up(registry.clone(), loaded)).await.err();
    if let Some(fault) = fault {
        tracing::error!(sandbox = %id, error = &fault as &dyn std::error::Error, "taking a sandbox up failed");
        take_up_damaged(&registry, id, damage).await;
    }
}

/// How a sandbox is listed that could not even be looked at.
fn damage_of(loaded: &Loaded) -> (SandboxId, Damage) {
    let reason = "taking it up failed; the daemon's log says where".to_owned();
    let (id, tenant, name, uid_base) = match loaded {
        Loaded::Sandbox(record) => (
            &record.id,
            Some(record.spec.tenant.clone()),
            Some(record.spec.name.clone()),
            Some(record.uid_base),
        ),
        Loaded::Damaged(id, damage) => (
            id,
            damage.tenant.clone(),
            damage.name.clone(),
            damage.uid_base,
        ),
        Loaded::Unfinished(id) => (id, None, None, None),
    };
    let damage = Damage {
        reason,
        tenant,
        name,
        uid_base,
    };
    (id.clone(), damage)
}

async fn take_up<R: Runtime>(registry: Registry<R>, loaded: Loaded) {
    match loaded {
        Loaded::Sandbox(record) => take_up_sandbox(&registry, Arc::new(*record)).await,
        Loaded::Damaged(id, damage) => take_up_damaged(&registry, id, damage).await,
        Loaded::Unfinished(id) => {
            tracing::info!(sandbox = %id, "unfinished create removed");
            match registry.runtime().discard_unfinished(id.clone()).await {
                Ok(()) => registry.runtime().remove(id, None),
                Err(error) => tracing::warn!(sandbox = %id, error = %error.chain(), "not removed"),
            }
        }
    }
}

async fn take_up_sandbox<R: Runtime>(registry: &Registry<R>, record: Arc<Record>) {
    let runtime = registry.runtime();
    let condition = match runtime.condition(Arc::clone(&record)).await {
        Ok(condition) => condition,
        Err(error) => {
            tracing::error!(sandbox = %record.id, error = %error.chain(), "sandbox not taken up");
            Condition::Unreachable(format!("it could not be taken up: {error}"))
        }
    };
    let mut status = Status::new(State::Stopped, expected_limits(runtime, &record));
    status.spec = Some(Arc::new(record.spec.clone()));
    let (mut found, mut remedy) = (None, Remedy::None);
    match condition {
        Condition::Alive {
            started,
            motion,
            known,
            runs,
        } => {
            let Started { live, limits } = started;
            status.state = match motion {
                Motion::Running => State::Running,
                Motion::Frozen => State::Frozen,
            };
            (status.limits, status.live) = (limits, Some(live.clone()));
            found = Some((live, known, runs));
        }
        Condition::Stopped => {}
        Condition::Unreachable(reason) => {
            remedy = Remedy::EndIfAsked;
            (status.state, status.reason) = (State::Damaged, reason);
        }
        Condition::Damaged(reason) => (status.state, status.reason) = (State::Damaged, reason),
    }
    tracing::info!(
        sandbox = %record.id, state = ?status.state, reason = status.reason,
        runs = found.as_ref().map_or(0, |(_, _, runs)| *runs), "sandbox taken up"
    );
    let identity = Identity {
        id: record.id.clone(),
        tenant: record.spec.tenant.clone(),
        name: record.spec.name.clone(),
    };
    let (handle, requests) = Handle::new(identity, record.created_at_ms, status);
    let watchman = restore_unused(runtime, &handle).await;
    runtime.recall_runs(&handle).await;
    if let Some((live, known, _)) = found
        && !adopt(runtime, &handle, live, known).await
    {
        remedy = Remedy::EndIfAsked;
    }
    let known = Known {
        uid_base: Some(record.uid_base),
        record: Some(record),
        watchman,
        remedy,
    };
    serve(registry, handle, requests, known);
}

/// Counts on for how long it has not been used. One that is not frozen any more does not stand still, whatever was noted.
async fn restore_unused<R: Runtime>(runtime: &R, handle: &Handle<R::Live>) -> Watchman {
    let Some(mut unused) = runtime.unused(handle.id().clone()).await else {
        return Watchman::default();
    };
    if handle.state() != State::Frozen {
        unused.pace = Pace::Counting;
    }
    handle.activity().restore(unused);
    Watchman::with_note()
}

/// Takes a holder's runs over. If that panics, the sandbox is damaged: what it says of its runs could not be trusted. Says
/// whether they were taken over.
async fn adopt<R: Runtime>(
    runtime: &R,
    handle: &Handle<R::Live>,
    live: R::Live,
    known: R::Known,
) -> bool {
    let adopted = runtime.adopt(handle, live, known).await;
    if let Err(error) = &adopted {
        tracing::error!(sandbox = %handle.id(), error = %error.chain(), "runs not taken over");
        handle.take_live(State::Damaged);
        handle.update(|status| {
            status.reason =
                "its runs could not be taken over; its processes stay until it is stopped or deleted"
                    .to_owned();
        });
    }
    adopted.is_ok()
}

async fn take_up_damaged<R: Runtime>(registry: &Registry<R>, id: SandboxId, damage: Damage) {
    tracing::error!(sandbox = %id, reason = damage.reason, "sandbox is damaged");
    let name = damage
        .name
        .unwrap_or_else(|| SandboxName::parse(id.as_str()).expect("an id has the form of a name"));
    let identity = Identity {
        id,
        tenant: damage.tenant.unwrap_or_default(),
        name,
    };
    let mut status = Status::new(State::Damaged, Vec::new());
    status.reason = damage.reason;
    let (handle, requests) = Handle::new(identity, 0, status);
    registry.runtime().recall_runs(&handle).await;
    let known = Known {
        uid_base: damage.uid_base,
        ..Known::default()
    };
    serve(registry, handle, requests, known);
}

/// What is known of a sandbox that was taken up.
#[derive(Default)]
struct Known {
    record: Option<Arc<Record>>,
    uid_base: Option<u32>,
    watchman: Watchman,
    remedy: Remedy,
}

fn serve<R: Runtime>(
    registry: &Registry<R>,
    handle: Handle<R::Live>,
    requests: mpsc::Receiver<Request<R::Live>>,
    known: Known,
) {
    let has_processes = handle.live_now().is_some() || known.remedy == Remedy::EndIfAsked;
    let promised = Promised::to_found(
        &registry.runtime().defaults().quotas,
        &handle.identity().tenant,
        known.record.as_ref().map(|record| &record.spec.limits),
        has_processes,
    );
    registry.table().insert(&handle);
    let Known {
        record,
        uid_base,
        watchman,
        remedy,
    } = known;
    let actor = Actor {
        runtime: registry.runtime().clone(),
        table: registry.table().clone(),
        handle,
        requests,
        record,
        uid_base,
        watchman,
        remedy,
        promised,
    };
    tokio::spawn(actor.serve());
}

/// Limits of a sandbox that is not running, as the host will hold them.
fn expected_limits<R: Runtime>(runtime: &R, record: &Record) -> Vec<LimitStatus> {
    let expected = runtime.expected(&record.spec.limits);
    // Whatever the caller allowed then: a listing refuses nothing.
    limits::statuses(&record.spec.requested, &expected, Shortfall::Degrade).unwrap_or_default()
}
