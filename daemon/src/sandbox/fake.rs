//! A host in memory, for tests of what is decided above the seam. It outlives the daemon: a registry is dropped with its
//! tasks (drop the tokio runtime that it lives in), and the next one is opened on the same [`Fake`].
//!
//! Each change yields before and after it takes effect, so that a kill can come between any two of them. It has no time and
//! no threads of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::task::yield_now;

use super::handle::Handle;
use super::id::SandboxId;
use super::idle::IdlePolicy;
use super::limits::{self, EffectiveLimits, LimitStatus, Limits, Shortfall};
use super::quota::Quotas;
use super::runtime::{Cause, Condition, Defaults, Left, Motion, New, Relimit, Runtime, Started};
use crate::error::{Error, ErrorKind, Result};
use crate::image::{Digest, ImageRef};
use crate::store::{Loaded, Record, Unused};

/// A daemon on it.
mod daemon;

pub(super) use daemon::{Daemon, acquire};

/// A host in memory. Cheap to clone: all clones are one host.
#[derive(Clone, Default)]
pub(crate) struct Fake(Arc<Mutex<World>>);

/// Lets the other tasks have so many turns.
pub(super) async fn turns(count: usize) {
    for _ in 0..count {
        yield_now().await;
    }
}

/// What is on the host.
#[derive(Default)]
pub(crate) struct World {
    /// By id: what was written last.
    pub(crate) records: BTreeMap<SandboxId, Arc<Record>>,
    /// Put away, and not yet removed.
    pub(crate) trash: BTreeSet<SandboxId>,
    /// Those that have processes.
    pub(crate) alive: BTreeMap<SandboxId, Alive>,
    /// How long they had not been used when that was noted. The host's clock stands still while no daemon lives.
    pub(crate) unused: BTreeMap<SandboxId, Unused>,
    /// Changes that fail, each once, in this order, by name: `create`, `start`, `end`, `freeze`, `thaw`, `limit`, `write`,
    /// `put away`.
    pub(crate) failing: Vec<&'static str>,
    /// The change that panics, once: before it takes effect, or after.
    pub(crate) panicking: Option<(&'static str, Moment)>,
    /// Starts so far; each start is a life of its own.
    lives: u64,
    uids: u32,
}

/// When a change panics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Before it took effect.
    Before,
    /// After.
    Done,
}

/// The processes of a sandbox.
pub(crate) struct Alive {
    /// Which start they are of.
    pub(crate) life: u64,
    /// Whether they get CPU.
    pub(crate) motion: Motion,
    dead: watch::Sender<bool>,
}

/// What runs get of a started sandbox.
#[derive(Clone)]
pub(crate) struct FakeLive {
    /// Which sandbox.
    pub(crate) id: SandboxId,
    /// Which start of it.
    pub(crate) life: u64,
    dead: watch::Receiver<bool>,
}

impl Fake {
    /// What is on the host now. Not to be held over an await.
    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// PID 1 of a sandbox dies, and with it all its processes.
    pub(crate) fn kill_holder(&self, id: &SandboxId) {
        if let Some(alive) = self.world().alive.remove(id) {
            alive.dead.send_replace(true);
        }
    }

    /// The host reboots: no process is left. The daemon must have been killed before.
    pub(crate) fn reboot(&self) {
        self.world().alive.clear();
    }

    /// Does a named change at once, or fails as it was told to.
    async fn change<T>(
        &self,
        name: &'static str,
        change: impl FnOnce(&mut World) -> Result<T>,
    ) -> Result<T> {
        yield_now().await;
        self.panic_if_told(name, Moment::Before);
        let done = {
            let mut world = self.world();
            match world.failing.first() {
                Some(next) if *next == name => {
                    world.failing.remove(0);
                    Err(Error::new(
                        ErrorKind::Internal,
                        "FAKE_FAILURE",
                        format!("{name} fails"),
                    ))
                }
                _ => change(&mut world),
            }
        };
        self.panic_if_told(name, Moment::Done);
        yield_now().await;
        done
    }

    fn panic_if_told(&self, name: &'static str, moment: Moment) {
        let told = self
            .world()
            .panicking
            .take_if(|told| *told == (name, moment));
        assert!(told.is_none(), "{name} panics, as it was told to");
    }

    fn statuses(&self, record: &Record) -> Result<Vec<LimitStatus>> {
        let expected = self.expected(&record.spec.limits);
        limits::statuses(&record.spec.requested, &expected, Shortfall::Degrade)
    }
}

impl World {
    /// Sets whether the processes of a life get CPU.
    fn move_on(&mut self, live: &FakeLive, motion: Motion) -> Result<()> {
        match self.alive.get_mut(&live.id) {
            Some(alive) if alive.life == live.life => {
                alive.motion = motion;
                Ok(())
            }
            _ => Err(gone()),
        }
    }
}

/// The error of a change of what has no processes any more.
fn gone() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "SANDBOX_STOPPED",
        "its processes are gone",
    )
}

impl Alive {
    fn live(&self, id: &SandboxId) -> FakeLive {
        FakeLive {
            id: id.clone(),
            life: self.life,
            dead: self.dead.subscribe(),
        }
    }
}

impl Runtime for Fake {
    type Live = FakeLive;
    type Known = ();
    type Pin = ();

    fn defaults(&self) -> Defaults {
        Defaults {
            image: "base".into(),
            limits: Limits::default(),
            idle: IdlePolicy::default(),
            quotas: Quotas::default(),
        }
    }

    fn expected(&self, limits: &Limits) -> EffectiveLimits {
        EffectiveLimits {
            memory_bytes: Ok(limits.memory_bytes),
            pids: Ok(limits.pids),
            cpu_millis: Ok(limits.cpu_millis),
            disk_bytes: Err("the fake has no disk".into()),
            open_files: Ok(limits.open_files),
            shm_bytes: Ok(limits.shm_bytes),
            inodes: Ok(limits.inodes),
        }
    }

    async fn resolve_image(&self, _image: &ImageRef) -> Result<(Digest, ())> {
        let digest = format!("sha256:{}", "0".repeat(64));
        Ok((Digest::parse(&digest)?, ()))
    }

    async fn create(&self, new: New) -> Result<Arc<Record>> {
        self.change("create", |world| {
            world.uids += 1;
            let record = Arc::new(Record {
                id: new.id,
                created_at_ms: new.created_at_ms,
                uid_base: world.uids << 16,
                spec: new.spec,
            });
            world.records.insert(record.id.clone(), Arc::clone(&record));
            Ok(record)
        })
        .await
    }

    async fn uncreate(&self, record: Arc<Record>) {
        self.world().records.remove(&record.id);
    }

    async fn start(&self, record: Arc<Record>) -> Result<Started<FakeLive>> {
        let limits = self.statuses(&record)?;
        self.change("start", |world| {
            assert!(
                !world.alive.contains_key(&record.id),
                "a sandbox is not started twice"
            );
            world.lives += 1;
            let alive = Alive {
                life: world.lives,
                motion: Motion::Running,
                dead: watch::Sender::new(false),
            };
            let live = alive.live(&record.id);
            world.alive.insert(record.id.clone(), alive);
            Ok(Started { live, limits })
        })
        .await
    }

    async fn died(&self, live: &FakeLive) {
        // A sender that is gone is a holder that is gone.
        let _ = live.dead.clone().wait_for(|dead| *dead).await;
    }

    async fn end(&self, live: FakeLive, _cause: Cause) -> Result<()> {
        self.change("end", |world| {
            world.alive.remove(&live.id);
            Ok(())
        })
        .await
    }

    async fn freeze(&self, live: FakeLive) -> Result<()> {
        self.change("freeze", |world| world.move_on(&live, Motion::Frozen))
            .await
    }

    async fn reclaim(&self, _live: FakeLive) -> Option<u64> {
        yield_now().await;
        Some(0)
    }

    async fn thaw(&self, live: FakeLive) -> Result<()> {
        self.change("thaw", |world| world.move_on(&live, Motion::Running))
            .await
    }

    async fn limit(&self, live: Option<FakeLive>, relimit: Relimit) -> Result<Vec<LimitStatus>> {
        let limits = self.statuses(&relimit.new)?;
        self.change("limit", |world| {
            let Some(live) = live else {
                return Ok(limits);
            };
            let alive = world.alive.get(&live.id);
            match alive.is_some_and(|alive| alive.life == live.life) {
                true => Ok(limits),
                false => Err(gone()),
            }
        })
        .await
    }

    async fn write(&self, record: Arc<Record>) -> Result<()> {
        self.change("write", |world| {
            world.records.insert(record.id.clone(), record);
            Ok(())
        })
        .await
    }

    async fn note_unused(&self, id: SandboxId, unused: Option<Unused>) {
        yield_now().await;
        let mut world = self.world();
        match unused {
            Some(unused) => world.unused.insert(id, unused),
            None => world.unused.remove(&id),
        };
    }

    async fn unused(&self, id: SandboxId) -> Option<Unused> {
        self.world().unused.get(&id).copied()
    }

    async fn end_leftovers(&self, id: SandboxId) -> Result<()> {
        self.change("end", |world| {
            world.alive.remove(&id);
            Ok(())
        })
        .await
    }

    async fn put_away(&self, id: SandboxId) -> Result<()> {
        self.change("put away", |world| {
            world.alive.remove(&id);
            world.unused.remove(&id);
            if world.records.remove(&id).is_some() {
                world.trash.insert(id);
            }
            Ok(())
        })
        .await
    }

    async fn discard_unfinished(&self, _id: SandboxId) -> Result<()> {
        Ok(())
    }

    fn remove(&self, id: SandboxId, _uid_base: Option<u32>) {
        self.world().trash.remove(&id);
    }

    async fn load(&self) -> Result<Left> {
        let mut world = self.world();
        let finished = world.trash.len();
        world.trash.clear();
        let records = world.records.values();
        let loaded = records
            .map(|record| Loaded::Sandbox(Box::new(Record::clone(record))))
            .collect();
        Ok(Left { loaded, finished })
    }

    async fn condition(&self, record: Arc<Record>) -> Result<Condition<Self>> {
        let limits = self.statuses(&record)?;
        let found = {
            let world = self.world();
            let alive = world.alive.get(&record.id);
            alive.map(|alive| (alive.live(&record.id), alive.motion))
        };
        yield_now().await;
        Ok(match found {
            Some((live, motion)) => Condition::Alive {
                started: Started { live, limits },
                motion,
                known: (),
                runs: 0,
            },
            None => Condition::Stopped,
        })
    }

    async fn recall_runs(&self, _handle: &Handle<FakeLive>) {}

    async fn adopt(&self, _handle: &Handle<FakeLive>, _live: FakeLive, _known: ()) -> Result<()> {
        Ok(())
    }
}
