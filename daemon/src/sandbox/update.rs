//! Changes of a sandbox that exists: what follows from one, and how this host holds changed limits.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::disk::Disk;
use super::idle::IdleChange;
use super::limits::{self, LimitStatus, Limits, RequestedLimits, Shortfall};
use super::live::Live;
use super::platform::Platform;
use super::room;
use super::runtime::Relimit;
use super::spec::{self, Spec};
use super::start;
use crate::error::{Error, ErrorKind, Result};

/// What is to change. What is not named stays.
#[derive(Debug, Clone)]
pub struct Change {
    /// Limits; an absent one stays as it is.
    pub limits: RequestedLimits,
    /// Whether changed limits that are not enforced are accepted.
    pub shortfall: Shortfall,
    /// The idle policy.
    pub idle: IdleChange,
    /// Labels to set.
    pub set_labels: BTreeMap<String, String>,
    /// Labels to remove, before others are set.
    pub remove_labels: Vec<String>,
}

impl Change {
    /// What the sandbox is after it, or why it cannot be.
    pub(super) fn on(&self, spec: &Spec) -> Result<Spec> {
        let mut changed = spec.clone();
        changed.limits = self.limits.resolve(&spec.limits)?;
        changed.requested = merged(&spec.requested, &self.limits);
        if self.shortfall == Shortfall::Degrade {
            changed.shortfall = Shortfall::Degrade;
        }
        changed.idle = self.idle.on(&spec.idle);
        for key in &self.remove_labels {
            changed.labels.remove(key);
        }
        changed.labels.extend(self.set_labels.clone());
        spec::check_labels(&changed.labels)?;
        Ok(changed)
    }
}

fn merged(old: &RequestedLimits, new: &RequestedLimits) -> RequestedLimits {
    RequestedLimits {
        memory_bytes: new.memory_bytes.or(old.memory_bytes),
        pids: new.pids.or(old.pids),
        cpu_millis: new.cpu_millis.or(old.cpu_millis),
        disk_bytes: new.disk_bytes.or(old.disk_bytes),
        open_files: new.open_files.or(old.open_files),
        shm_bytes: new.shm_bytes.or(old.shm_bytes),
        inodes: new.inodes.or(old.inodes),
    }
}

/// Has kernel and storage driver hold the new limits; one that they do not take has them hold the old ones again. Blocks.
pub(super) fn limit(
    platform: &Platform,
    live: Option<&Live>,
    relimit: &Relimit,
) -> Result<Vec<LimitStatus>> {
    room::admit(platform.room, &relimit.asked)?;
    if let Some(live) = live {
        make_room(live, &relimit.old.spec.limits, &relimit.new.spec.limits)?;
    }
    let disk = live.map_or_else(
        || Disk::of(platform, &relimit.new.id, None),
        |live| live.disk.clone(),
    );
    let limited = disk.relimit(relimit).and_then(|()| match live {
        Some(live) => limit_live(platform, live, relimit),
        None => limit_stopped(platform, &disk, relimit),
    });
    if limited.is_err() {
        disk.take_back(relimit);
    }
    limited
}

/// The kernel holds the others from the next start on.
fn limit_stopped(platform: &Platform, disk: &Disk, relimit: &Relimit) -> Result<Vec<LimitStatus>> {
    let spec = &relimit.new.spec;
    let mut expected = platform.expected(&spec.limits);
    disk.correct(&mut expected);
    limits::statuses(&relimit.asked, &expected, relimit.shortfall)?;
    limits::statuses(&spec.requested, &expected, Shortfall::Degrade)
}

fn limit_live(platform: &Platform, live: &Live, relimit: &Relimit) -> Result<Vec<LimitStatus>> {
    let Relimit {
        old,
        new,
        asked,
        shortfall,
    } = relimit;
    let held = start::held(platform, new, (&live.cgroup, &live.disk));
    if let Err(refused) = limits::statuses(asked, &held, *shortfall) {
        let _ = start::held(platform, old, (&live.cgroup, &live.disk));
        return Err(refused);
    }
    set_messages(live, &new.spec.limits);
    limits::statuses(&new.spec.requested, &held, Shortfall::Degrade)
}

/// A memory limit below what is used would have the kernel kill for it on v2, and is refused by it on v1.
fn make_room(live: &Live, old: &Limits, new: &Limits) -> Result<()> {
    let used = || live.cgroup.usage().memory.unwrap_or(0);
    if new.memory_bytes >= old.memory_bytes || used() <= new.memory_bytes {
        return Ok(());
    }
    // Page cache is no reason to refuse. How much goes is looked at below.
    let _ = live.cgroup.reclaim();
    let used = used();
    if used <= new.memory_bytes {
        return Ok(());
    }
    let text = format!(
        "memory_bytes is {}, and the sandbox uses {used}",
        new.memory_bytes
    );
    Err(
        Error::new(ErrorKind::FailedPrecondition, "MEMORY_IN_USE", text)
            .hint("end processes in it, or stop it first"),
    )
}

/// Messages that name a limit name the new one.
fn set_messages(live: &Live, limits: &Limits) {
    live.pids_limit.store(limits.pids, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::super::confinement::Confinement;
    use super::super::id::{SandboxName, Tenant};
    use super::super::idle::{After, IdlePolicy};
    use super::*;

    fn spec() -> Spec {
        Spec {
            tenant: Tenant::default(),
            name: SandboxName::parse("a").expect("valid"),
            image: "base".into(),
            image_digest: String::new(),
            env: BTreeMap::new(),
            labels: BTreeMap::from([("a".into(), "1".into()), ("b".into(), "2".into())]),
            requested: RequestedLimits {
                pids: Some(100),
                ..RequestedLimits::default()
            },
            limits: Limits {
                pids: 100,
                ..Limits::default()
            },
            shortfall: Shortfall::Refuse,
            idle: IdlePolicy::default(),
            confinement: Confinement::default(),
        }
    }

    fn nothing() -> Change {
        Change {
            limits: RequestedLimits::default(),
            shortfall: Shortfall::Refuse,
            idle: IdleChange::default(),
            set_labels: BTreeMap::new(),
            remove_labels: Vec::new(),
        }
    }

    #[test]
    fn a_change_of_nothing_changes_nothing() {
        assert_eq!(nothing().on(&spec()).expect("possible"), spec());
    }

    #[test]
    fn what_is_named_changes_and_nothing_else() {
        let change = Change {
            limits: RequestedLimits {
                memory_bytes: Some(64 << 20),
                ..RequestedLimits::default()
            },
            idle: IdleChange {
                delete: Some(After::Never),
                ..IdleChange::default()
            },
            set_labels: BTreeMap::from([("a".into(), "3".into())]),
            remove_labels: vec!["a".into(), "b".into(), "none".into()],
            ..nothing()
        };
        let changed = change.on(&spec()).expect("possible");
        assert_eq!(
            (changed.limits.memory_bytes, changed.limits.pids),
            (64 << 20, 100)
        );
        assert_eq!(changed.requested.pids, Some(100));
        assert_eq!(changed.labels, BTreeMap::from([("a".into(), "3".into())]));
    }

    #[test]
    fn a_change_that_is_wrong_in_one_thing_changes_nothing() {
        let change = Change {
            limits: RequestedLimits {
                pids: Some(1),
                ..RequestedLimits::default()
            },
            ..nothing()
        };
        assert_eq!(
            change.on(&spec()).expect_err("too small").reason(),
            "LIMIT_TOO_SMALL"
        );
    }
}
