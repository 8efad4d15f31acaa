//! Against a driver in memory.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::super::confinement::Confinement;
use super::super::id::{SandboxName, Tenant};
use super::super::idle::IdlePolicy;
use super::super::limits::{Limits, RequestedLimits};
use super::super::spec::Spec;
use super::*;
use crate::storage::{Abilities, HostDisk, Place, Root};

const GIB: u64 = 1 << 30;

/// What a driver in memory says.
struct Memory {
    abilities: Abilities,
    usage: Result<DiskUsage, ()>,
    /// What the next change is refused with.
    refusal: Mutex<Option<StorageError>>,
    /// What it was told to hold, in order.
    told: Mutex<Vec<DiskLimit>>,
}

impl Storage for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn abilities(&self) -> Abilities {
        self.abilities
    }

    fn admit(&self) -> Result<(), StorageError> {
        unreachable!("nothing is created")
    }

    fn prepare(&self, _: Place<'_>, _: DiskLimit) -> Result<(), StorageError> {
        unreachable!("nothing is created")
    }

    fn check(&self, _: Place<'_>) -> Result<(), StorageError> {
        unreachable!("nothing is started")
    }

    fn open(&self, _: Place<'_>, _: DiskLimit) -> Result<Root, StorageError> {
        unreachable!("nothing is started")
    }

    fn set_limit(&self, _: &Path, _: Option<&Path>, limit: DiskLimit) -> Result<(), StorageError> {
        match self.refusal.lock().expect("no panic").take() {
            Some(refusal) => Err(refusal),
            None => {
                self.told.lock().expect("no panic").push(limit);
                Ok(())
            }
        }
    }

    fn usage(&self, dir: &Path, _: Option<&Path>) -> Result<DiskUsage, StorageError> {
        self.usage.map_err(|()| StorageError::Io {
            action: "look at",
            path: dir.to_owned(),
            source: std::io::Error::other("gone"),
        })
    }

    fn remove(&self, _: &Path, _: &str) -> Result<(), StorageError> {
        unreachable!("nothing is removed")
    }

    fn sweep(&self, _: &[PathBuf]) -> Result<(), StorageError> {
        unreachable!("nothing is removed")
    }

    fn host(&self) -> Result<HostDisk, StorageError> {
        unreachable!("nobody asks")
    }

    fn grow(&self, _: u64) -> Result<HostDisk, StorageError> {
        unreachable!("nobody asks")
    }

    fn keep_reserve(&self) -> Result<(), StorageError> {
        unreachable!("nobody asks")
    }
}

fn memory(limit_inodes: Result<(), &'static str>, usage: DiskUsage) -> Arc<Memory> {
    Arc::new(Memory {
        abilities: Abilities {
            limit_bytes: Ok(()),
            limit_inodes,
            grow: Ok(()),
        },
        usage: Ok(usage),
        refusal: Mutex::default(),
        told: Mutex::default(),
    })
}

fn disk(storage: &Arc<Memory>) -> Disk {
    let storage: Arc<Memory> = Arc::clone(storage);
    Disk {
        storage,
        dir: PathBuf::from("/nowhere").into(),
        root: None,
    }
}

fn record(bytes: u64, inodes: u64) -> Arc<Record> {
    let limits = Limits {
        disk_bytes: bytes,
        inodes,
        ..Limits::default()
    };
    Arc::new(Record {
        id: SandboxId::parse("aaaaaaaaaaaaaaaaaaaa").expect("valid"),
        created_at_ms: 0,
        uid_base: 0,
        spec: Spec {
            tenant: Tenant::default(),
            name: SandboxName::parse("a").expect("valid"),
            image: "base".into(),
            image_digest: String::new(),
            env: BTreeMap::new(),
            labels: BTreeMap::new(),
            requested: RequestedLimits::default(),
            limits,
            shortfall: Shortfall::Refuse,
            idle: IdlePolicy::default(),
            confinement: Confinement::default(),
        },
    })
}

fn relimit(old: (u64, u64), new: (u64, u64), shortfall: Shortfall) -> Relimit {
    Relimit {
        old: record(old.0, old.1),
        new: record(new.0, new.1),
        asked: RequestedLimits::default(),
        shortfall,
    }
}

fn unsupported() -> Option<StorageError> {
    Some(StorageError::Unsupported {
        what: "a smaller limit",
        driver: "memory",
        why: "it is started".to_owned(),
    })
}

fn told(storage: &Memory) -> Vec<u64> {
    let told = storage.told.lock().expect("no panic");
    told.iter().map(|limit| limit.bytes).collect()
}

#[test]
fn a_driver_is_asked_only_for_what_it_holds() {
    let storage = memory(Err("no count"), DiskUsage::default());
    let disk = disk(&storage);
    for new in [(GIB, 5000), (GIB, 6000)] {
        let same = relimit((GIB, 5000), new, Shortfall::Refuse);
        disk.relimit(&same).expect("nothing to do");
    }
    assert_eq!(told(&storage), [] as [u64; 0]);
    let more = relimit((GIB, 5000), (2 * GIB, 6000), Shortfall::Refuse);
    disk.relimit(&more).expect("it can");
    disk.take_back(&more);
    assert_eq!(told(&storage), [2 * GIB, GIB]);
}

#[test]
fn what_is_in_use_or_cannot_be_changed_now_is_refused_with_its_reason() {
    let storage = memory(Ok(()), DiskUsage::default());
    let disk = disk(&storage);
    let refused = |refusal, shortfall| {
        *storage.refusal.lock().expect("no panic") = refusal;
        disk.relimit(&relimit((2 * GIB, 5000), (GIB, 5000), shortfall))
    };
    let in_use = || {
        Some(StorageError::InUse {
            limit_bytes: GIB,
            used_bytes: GIB + 1,
        })
    };
    for (refusal, shortfall, reason) in [
        (in_use(), Shortfall::Refuse, "DISK_IN_USE"),
        // Who takes less than was asked for does not ask for broken files.
        (in_use(), Shortfall::Degrade, "DISK_IN_USE"),
        (unsupported(), Shortfall::Refuse, "UNSUPPORTED_BY_STORAGE"),
    ] {
        let error = refused(refusal, shortfall).expect_err("refused");
        assert_eq!(error.reason(), reason);
    }
    refused(unsupported(), Shortfall::Degrade).expect("at the next start");
}

fn expected() -> EffectiveLimits {
    EffectiveLimits {
        memory_bytes: Ok(1),
        pids: Ok(2),
        cpu_millis: Ok(3),
        disk_bytes: Ok(4),
        open_files: Ok(5),
        shm_bytes: Ok(6),
        inodes: Err("no count".into()),
    }
}

#[test]
fn what_is_held_is_told_and_not_what_was_asked_for() {
    let held = DiskUsage {
        limit_bytes: Some(GIB),
        ..DiskUsage::default()
    };
    for (usage, bytes) in [
        (held, Ok(GIB)),
        (DiskUsage::default(), Err(NOT_HELD.to_owned())),
    ] {
        let mut effective = expected();
        disk(&memory(Err("no count"), usage)).correct(&mut effective);
        assert_eq!(effective.disk_bytes, bytes);
        assert_eq!(effective.inodes, Err("no count".to_owned()));
    }
}

#[test]
fn what_cannot_be_looked_at_changes_no_expectation_and_has_no_figures() {
    let storage = Arc::new(Memory {
        usage: Err(()),
        ..Arc::into_inner(memory(Ok(()), DiskUsage::default())).expect("one")
    });
    let disk = disk(&storage);
    let mut effective = expected();
    disk.correct(&mut effective);
    assert_eq!(effective, expected());
    assert_eq!(disk.usage(), DiskUsage::default());
}

/// A daemon that was killed between a change and its record left a limit that nobody was told of.
#[test]
fn a_sandbox_that_runs_on_gets_the_limit_of_its_record_again() {
    let held = |bytes| DiskUsage {
        limit_bytes: Some(bytes),
        ..DiskUsage::default()
    };
    let storage = memory(Ok(()), held(2 * GIB));
    disk(&storage).hold_again(&record(GIB, 5000));
    assert_eq!(told(&storage), [GIB]);
    let storage = memory(Ok(()), held(GIB));
    disk(&storage).hold_again(&record(GIB, 5000));
    assert_eq!(told(&storage), [] as [u64; 0]);
}

/// An ext4 has somewhat more inodes than it was made for. A start of the daemon changes nothing then, nor mounts anything.
#[test]
fn a_sandbox_that_runs_on_with_more_inodes_than_asked_for_is_left_alone() {
    let held = |inodes| DiskUsage {
        limit_bytes: Some(GIB),
        inodes_limit: Some(inodes),
        ..DiskUsage::default()
    };
    for (inodes, expected) in [(5104, &[] as &[u64]), (5000, &[]), (4096, &[GIB])] {
        let storage = memory(Ok(()), held(inodes));
        disk(&storage).hold_again(&record(GIB, 5000));
        assert_eq!(told(&storage), expected, "{inodes}");
    }
}
