//! What an earlier daemon left on this host: records, uid ranges, and holders that live or do not.
//!
//! A holder is believed by the sandbox's cgroup and by its socket, which only it can serve; no pid is ever read from a
//! file, since it may be another process's by then.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lodge_kernel::cgroup::SandboxGroup;

use super::disk::Disk;
use super::host::Host;
use super::id::SandboxId;
use super::limits::Shortfall;
use super::live::{Live, OomEvents};
use super::pause;
use super::platform::Platform;
use super::reach::{Reached, reach};
use super::residue;
use super::runtime::{Condition, Started};
use super::start;
use super::stop;
use super::uid_range;
use crate::error::{Error, ErrorKind, Result};
use crate::fault;
use crate::holder::Holder;
use crate::store::{Damage, Loaded, Record};

/// What was put away and is to be removed, with its uid range where that can be told.
pub(super) type Trash = Vec<(SandboxId, Option<u32>)>;

/// Reads the state directory and claims every uid range in it. Blocks.
pub(super) fn load(platform: &Arc<Platform>) -> Result<(Vec<Loaded>, Trash)> {
    fault::point("recover.load")?;
    let loaded = platform.store.load()?;
    fault::point("recover.load.done")?;
    let trash = platform.store.trash()?;
    // Before uids are claimed: a range in which something of nobody's lives would be left out.
    residue::sweep(
        &platform.cgroup_parent,
        &platform.holders_dir,
        &platform.owner,
        &with_processes(&loaded),
    );
    let loaded = fault::around("recover.claim uids", || {
        claim_uids(platform, loaded, &trash)
    })?;
    Ok((loaded, trash))
}

/// The sandboxes that may have processes: one that was never finished or that was deleted has none.
fn with_processes(loaded: &[Loaded]) -> BTreeSet<SandboxId> {
    let ids = loaded.iter().filter_map(|one| match one {
        Loaded::Sandbox(record) => Some(record.id.clone()),
        Loaded::Damaged(id, _) => Some(id.clone()),
        Loaded::Unfinished(_) => None,
    });
    ids.collect()
}

/// Looks at one sandbox, and ends what is left of a dead one.
pub(super) async fn condition(host: &Host, record: Arc<Record>) -> Result<Condition<Host>> {
    let id = record.id.clone();
    let group = host
        .on_thread(move |platform| stop::existing_group(platform, &id))
        .await?;
    let Some(group) = group.map(Arc::new) else {
        return host
            .on_thread(move |platform| Ok(stopped(platform, &record)))
            .await;
    };
    let socket = start::holder_socket(host.platform(), &record.id);
    match reach(&group, &socket).await? {
        Reached::Holder(holder, known) => {
            let runs = known.len();
            let started = host.on_thread(move |platform| {
                fault::around("recover.take up running", || {
                    alive(platform, &record, holder, group)
                })
            });
            let started = started.await?;
            let motion = pause::settle(host, &started.live).await?;
            Ok(Condition::Alive {
                started,
                motion,
                known,
                runs,
            })
        }
        Reached::Nobody => {
            host.on_thread(move |platform| {
                fault::around("recover.take up dead", || dead(platform, &record, &group))
            })
            .await
        }
        Reached::Deaf(error) => {
            tracing::error!(sandbox = %record.id, error = &error as &dyn std::error::Error, "holder cannot be reached");
            Ok(Condition::Unreachable(format!(
                "its PID 1 lives and cannot be reached ({error}); its processes stay until it is stopped or deleted"
            )))
        }
    }
}

fn alive(
    platform: &Platform,
    record: &Record,
    holder: Holder,
    group: Arc<SandboxGroup>,
) -> Result<Started<Live>> {
    let image = start::image_of(platform, record)?;
    let disk = Disk::of(platform, &record.id, Some(holder.pid()));
    disk.hold_again(record);
    // It runs already: a limit that this host no longer holds is shown, not refused.
    let limits = start::hold_limits(platform, record, (&group, &disk), Shortfall::Degrade)?;
    // It runs already: a run that the rest of is not ended at once still says how it ended.
    let oom = OomEvents::of(&group).unwrap_or_else(|error| {
        tracing::error!(sandbox = %record.id, error = &error as &dyn std::error::Error, "want of memory is not seen");
        OomEvents::default()
    });
    let live = start::live(platform, record, &image, holder, (group, oom));
    Ok(Started { live, limits })
}

/// Without a holder, what is left in the cgroup is on its way out.
fn dead(platform: &Platform, record: &Record, group: &SandboxGroup) -> Result<Condition<Host>> {
    stop::end_group(group)?;
    Ok(stopped(platform, record))
}

/// It has no processes. One whose files or whose image's are missing is told apart here, before a caller meets it.
fn stopped(platform: &Platform, record: &Record) -> Condition<Host> {
    start::remove_socket(platform, &record.id);
    match start::what_is_missing(platform, record) {
        None => Condition::Stopped,
        Some(error) => {
            tracing::error!(sandbox = %record.id, error = %error.chain(), "its files are missing");
            Condition::Damaged(format!("it could not be started: {error}"))
        }
    }
}

/// Who has which uid range, by its first id.
type Ranges = BTreeMap<u32, SandboxId>;

/// Marks every uid range that is in use. A sandbox whose range another one has is damaged: a range is never shared. Of two,
/// the younger keeps it: the older was away when the range was given out, and only the other one can have processes.
/// Refuses to start where somebody else has ids of our block.
fn claim_uids(
    platform: &Platform,
    mut loaded: Vec<Loaded>,
    trash: &[(SandboxId, Option<u32>)],
) -> Result<Vec<Loaded>> {
    let put_away = trash
        .iter()
        .filter_map(|(id, base)| Some(((*base)?, id.clone())));
    let mut ours: Ranges = put_away.collect();
    for base in ours.keys() {
        // The trash comes first, and its bases differ.
        let _ = platform.uids.claim(*base);
    }
    loaded.sort_by_key(|one| match one {
        Loaded::Sandbox(record) => Reverse(record.created_at_ms),
        // What a damaged record says is the least to be believed.
        Loaded::Damaged(..) | Loaded::Unfinished(_) => Reverse(0),
    });
    let claimed = loaded
        .into_iter()
        .map(|one| claim(platform, &mut ours, one))
        .collect();
    check_strangers(platform, &ours.into_keys().collect())?;
    Ok(claimed)
}

fn claim(platform: &Platform, ours: &mut Ranges, loaded: Loaded) -> Loaded {
    match loaded {
        Loaded::Sandbox(record) if !platform.uids.claim(record.uid_base) => {
            let Record {
                id, spec, uid_base, ..
            } = *record;
            let owner = ours.get(&uid_base).map_or("another one", SandboxId::as_str);
            let damage = Damage {
                reason: format!(
                    "its uid range, {uid_base}, has become that of sandbox {owner}: it can be used once that one is \
                     deleted and the daemon restarted"
                ),
                tenant: Some(spec.tenant),
                name: Some(spec.name),
                uid_base: None,
            };
            Loaded::Damaged(id, damage)
        }
        Loaded::Sandbox(record) => {
            ours.insert(record.uid_base, record.id.clone());
            Loaded::Sandbox(record)
        }
        Loaded::Damaged(id, mut damage) => {
            damage.uid_base = damage.uid_base.filter(|base| platform.uids.claim(*base));
            ours.extend(damage.uid_base.map(|base| (base, id.clone())));
            Loaded::Damaged(id, damage)
        }
        unfinished @ Loaded::Unfinished(_) => unfinished,
    }
}

fn check_strangers(platform: &Platform, ours: &BTreeSet<u32>) -> Result<()> {
    let survey = uid_range::survey(platform.uids.block(), ours)
        .map_err(|e| Error::internal("UID_CHECK_FAILED", "cannot check the uid ranges", e))
        .map_err(|error| error.hint("is /proc mounted, and lodged root?"))?;
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
