//! What an earlier daemon left: every sandbox is listed again. One whose holder lives goes on; what is left of a dead one
//! is ended, and its next run starts it. One whose holder lives and cannot be talked to is damaged: its processes stay as
//! they are until it is deleted. Nothing that one sandbox left keeps the others from being served. A holder is believed by the sandbox's cgroup and by its socket, which only it can
//! serve; no pid is ever read from a file, since it may be another process's by then.

use std::collections::BTreeSet;
use std::sync::Arc;

use lodge_kernel::cgroup::SandboxGroup;
use tokio::task::JoinSet;

use super::actor::Actor;
use super::delete;
use super::handle::{Handle, Identity, Status};
use super::id::{SandboxId, SandboxName};
use super::limits::{self, LimitStatus, Shortfall};
use super::live::Live;
use super::platform::Platform;
use super::reach::{Reached, reach};
use super::registry::Registry;
use super::start;
use super::state::State;
use super::stop;
use super::uid_range;
use crate::error::{Error, ErrorKind, Result};
use crate::fault;
use crate::holder::{Holder, KnownRun};
use crate::store::{Damage, Loaded, Record};

/// Holders asked at once. Each answers in less than a millisecond, or is given up on after some seconds: so many at once
/// that a node full of silent ones is served long before the unit's start would time out.
const ASKED_AT_ONCE: usize = 256;

/// Fills the registry from the state directory. Nothing is served before this ends.
pub(super) async fn recover(registry: &Registry) -> Result<()> {
    let platform = Arc::clone(registry.platform());
    let (loaded, trash) = on_thread(move || {
        fault::point("recover.load")?;
        let loaded = platform.store.load()?;
        fault::point("recover.load.done")?;
        let trash = platform.store.trash()?;
        let loaded = fault::around("recover.claim uids", || {
            claim_uids(&platform, loaded, &trash)
        })?;
        Ok((loaded, trash))
    })
    .await?;
    for (id, uid_base) in trash {
        remove_discarded(registry, id, uid_base);
    }
    take_up_all(registry, loaded).await;
    Ok(())
}

async fn take_up_all(registry: &Registry, loaded: Vec<Loaded>) {
    let mut tasks = JoinSet::new();
    for one in loaded {
        if tasks.len() >= ASKED_AT_ONCE {
            tasks.join_next().await;
        }
        tasks.spawn(take_up_or_list(registry.clone(), one));
    }
    while tasks.join_next().await.is_some() {}
}

/// Takes a sandbox up; if that panics, the sandbox is damaged and the others go on.
async fn take_up_or_list(registry: Registry, loaded: Loaded) {
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

async fn take_up(registry: Registry, loaded: Loaded) {
    match loaded {
        Loaded::Sandbox(record) => take_up_sandbox(&registry, Arc::new(*record)).await,
        Loaded::Damaged(id, damage) => take_up_damaged(&registry, id, damage).await,
        Loaded::Unfinished(id) => {
            tracing::info!(sandbox = %id, "unfinished create removed");
            let (platform, discarded) = (Arc::clone(registry.platform()), id.clone());
            let discard = on_thread(move || {
                fault::around("recover.discard unfinished", || {
                    Ok(platform.store.discard(&discarded)?)
                })
            })
            .await;
            match discard {
                Ok(()) => remove_discarded(&registry, id, None),
                Err(error) => tracing::warn!(sandbox = %id, error = %error.chain(), "not removed"),
            }
        }
    }
}

/// How a sandbox was found.
enum Condition {
    Running(Live, Vec<LimitStatus>, Vec<KnownRun>),
    Stopped,
    Damaged(String),
}

async fn take_up_sandbox(registry: &Registry, record: Arc<Record>) {
    let platform = registry.platform();
    let condition = match condition(platform, &record).await {
        Ok(condition) => condition,
        Err(error) => {
            tracing::error!(sandbox = %record.id, error = %error.chain(), "sandbox not taken up");
            Condition::Damaged(format!("it could not be taken up: {error}"))
        }
    };
    let mut status = Status {
        state: State::Stopped,
        reason: String::new(),
        limits: expected_limits(platform, &record),
        live: None,
    };
    let mut known = Vec::new();
    match condition {
        Condition::Running(live, limits, runs) => {
            (status.state, status.limits, status.live) = (State::Running, limits, Some(live));
            known = runs;
        }
        Condition::Stopped => {}
        Condition::Damaged(reason) => (status.state, status.reason) = (State::Damaged, reason),
    }
    tracing::info!(
        sandbox = %record.id, state = ?status.state, reason = status.reason, runs = known.len(),
        "sandbox taken up"
    );
    let identity = Identity {
        id: record.id.clone(),
        tenant: record.spec.tenant.clone(),
        name: record.spec.name.clone(),
    };
    let spec = record.spec.clone();
    let (handle, requests) = Handle::new(identity, Some(spec), record.created_at_ms, status);
    if let Some(live) = handle.live_now() {
        adopt(platform, &handle, live, known).await;
    }
    serve(
        registry,
        handle,
        requests,
        Some(Arc::clone(&record)),
        Some(record.uid_base),
    );
}

/// Takes a holder's runs over. If that panics, the sandbox is damaged: what it says of its runs could not be trusted.
async fn adopt(platform: &Arc<Platform>, handle: &Handle, live: Live, known: Vec<KnownRun>) {
    let (platform, runs) = (Arc::clone(platform), handle.runs().clone());
    let adopted = on_thread(move || {
        platform.engine.adopt(&live, &runs, known);
        Ok(())
    });
    if let Err(error) = adopted.await {
        tracing::error!(sandbox = %handle.id(), error = %error.chain(), "runs not taken over");
        handle.take_live(State::Damaged);
        handle.update(|status| {
            status.reason =
                "its runs could not be taken over; its processes stay until it is deleted"
                    .to_owned();
        });
    }
}

async fn take_up_damaged(registry: &Registry, id: SandboxId, damage: Damage) {
    tracing::error!(sandbox = %id, reason = damage.reason, "sandbox is damaged");
    let name = damage
        .name
        .unwrap_or_else(|| SandboxName::parse(id.as_str()).expect("an id has the form of a name"));
    let identity = Identity {
        id,
        tenant: damage.tenant.unwrap_or_default(),
        name,
    };
    let status = Status {
        state: State::Damaged,
        reason: damage.reason,
        limits: Vec::new(),
        live: None,
    };
    let (handle, requests) = Handle::new(identity, None, 0, status);
    serve(registry, handle, requests, None, damage.uid_base);
}

fn serve(
    registry: &Registry,
    handle: Handle,
    requests: tokio::sync::mpsc::Receiver<super::actor::Request>,
    record: Option<Arc<Record>>,
    uid_base: Option<u32>,
) {
    registry.table().insert(&handle);
    let platform = Arc::clone(registry.platform());
    let table = registry.table().clone();
    tokio::spawn(
        Actor {
            platform,
            table,
            handle,
            requests,
            record,
            uid_base,
        }
        .serve(),
    );
}

async fn condition(platform: &Arc<Platform>, record: &Arc<Record>) -> Result<Condition> {
    let (of_group, id) = (Arc::clone(platform), record.id.clone());
    let group = on_thread(move || stop::existing_group(&of_group, &id)).await?;
    let Some(group) = group.map(Arc::new) else {
        start::remove_socket(platform, &record.id);
        return Ok(Condition::Stopped);
    };
    let socket = start::holder_socket(platform, &record.id);
    let reached = reach(&group, &socket).await?;
    let (platform, record) = (Arc::clone(platform), Arc::clone(record));
    match reached {
        Reached::Holder(holder, known) => {
            on_thread(move || {
                fault::around("recover.take up running", || {
                    running(&platform, &record, holder, group, known)
                })
            })
            .await
        }
        Reached::Nobody => {
            on_thread(move || {
                fault::around("recover.take up dead", || {
                    stopped(&platform, &record, &group)
                })
            })
            .await
        }
        Reached::Deaf(error) => {
            tracing::error!(sandbox = %record.id, error = &error as &dyn std::error::Error, "holder cannot be reached");
            Ok(Condition::Damaged(format!(
                "its PID 1 lives and cannot be reached ({error}); its processes stay until it is deleted"
            )))
        }
    }
}

fn running(
    platform: &Platform,
    record: &Record,
    holder: Holder,
    group: Arc<SandboxGroup>,
    known: Vec<KnownRun>,
) -> Result<Condition> {
    let image = start::image_of(platform, record)?;
    // It runs already: a limit that this host no longer holds is shown, not refused.
    let limits = start::hold_limits(platform, record, &group, Shortfall::Degrade)?;
    let live = start::live(platform, record, &image, holder, group);
    Ok(Condition::Running(live, limits, known))
}

/// Without a holder, what is left in the cgroup is on its way out.
fn stopped(platform: &Platform, record: &Record, group: &SandboxGroup) -> Result<Condition> {
    stop::end_group(group)?;
    start::remove_socket(platform, &record.id);
    Ok(Condition::Stopped)
}

/// Limits of a sandbox that is not running, as the host will hold them.
fn expected_limits(platform: &Platform, record: &Record) -> Vec<LimitStatus> {
    let expected = platform.expected(&record.spec.limits);
    // Whatever the caller allowed then: a listing refuses nothing.
    limits::statuses(&record.spec.requested, &expected, Shortfall::Degrade).unwrap_or_default()
}

fn remove_discarded(registry: &Registry, id: SandboxId, uid_base: Option<u32>) {
    delete::remove_in_background(Arc::clone(registry.platform()), id, uid_base);
}

/// Marks every uid range that is in use. A sandbox whose range another one has is damaged: a range is never shared.
/// Refuses to start where somebody else has ids of our block.
fn claim_uids(
    platform: &Platform,
    loaded: Vec<Loaded>,
    trash: &[(SandboxId, Option<u32>)],
) -> Result<Vec<Loaded>> {
    let mut ours: BTreeSet<u32> = trash.iter().filter_map(|(_, base)| *base).collect();
    for base in &ours {
        // The trash comes first, and its bases differ.
        let _ = platform.uids.claim(*base);
    }
    let claimed = loaded
        .into_iter()
        .map(|one| claim(platform, &mut ours, one))
        .collect();
    check_strangers(platform, &ours)?;
    Ok(claimed)
}

fn claim(platform: &Platform, ours: &mut BTreeSet<u32>, loaded: Loaded) -> Loaded {
    match loaded {
        Loaded::Sandbox(record) if !platform.uids.claim(record.uid_base) => {
            let reason = format!("another sandbox has its uid range, {}", record.uid_base);
            let Record { id, spec, .. } = *record;
            let (tenant, name) = (Some(spec.tenant), Some(spec.name));
            Loaded::Damaged(
                id,
                Damage {
                    reason,
                    tenant,
                    name,
                    uid_base: None,
                },
            )
        }
        Loaded::Sandbox(record) => {
            ours.insert(record.uid_base);
            Loaded::Sandbox(record)
        }
        Loaded::Damaged(id, mut damage) => {
            damage.uid_base = damage.uid_base.filter(|base| platform.uids.claim(*base));
            ours.extend(damage.uid_base);
            Loaded::Damaged(id, damage)
        }
        unfinished @ Loaded::Unfinished(_) => unfinished,
    }
}

fn check_strangers(platform: &Platform, ours: &BTreeSet<u32>) -> Result<()> {
    let survey = uid_range::survey(platform.uids.block(), ours)
        .map_err(|e| Error::internal("UID_CHECK_FAILED", "cannot check the uid ranges", e))?;
    for warning in &survey.warnings {
        tracing::warn!("{warning}");
    }
    for base in survey.occupied {
        tracing::warn!(
            base,
            "processes without a record live in this uid range; it is left out"
        );
        // It is nobody's, or it would not be occupied by a stranger.
        let _ = platform.uids.claim(base);
    }
    if survey.conflicts.is_empty() {
        return Ok(());
    }
    let text = survey.conflicts.join("; ");
    Err(
        Error::new(ErrorKind::FailedPrecondition, "UID_RANGES_TAKEN", text)
            .hint("set uid_range_start to ids that nobody else has"),
    )
}

async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(Error::internal("INTERNAL", "recovery failed", error)))
}
