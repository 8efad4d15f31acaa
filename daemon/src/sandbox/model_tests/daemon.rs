//! A daemon on a host in memory, and what a sequence does with it.

use std::future::Future;
use std::time::Duration;

use tokio::task::{JoinHandle, yield_now};

use super::super::SandboxRef;
use super::super::fake::{self, Fake, FakeLive, turns};
use super::super::handle::{Handle, Resume};
use super::super::id::{SandboxName, Tenant};
use super::super::idle::{After, IdleChange};
use super::super::limits::{RequestedLimits, Shortfall};
use super::super::registry::{Acquire, Registry};
use super::super::runtime::Motion;
use super::super::update::Change;
use super::belief::{Answer, FREEZE_AFTER, STOP_AFTER};
use super::moves::Op;
use crate::error::Result;

/// Nothing takes so long: time passes only when every task waits for it.
const STUCK_AFTER: Duration = Duration::from_secs(10);
/// Turns after which nothing goes on any more that nobody waits for.
const QUIET_AFTER: usize = 20;

/// A daemon.
pub(super) struct Daemon {
    fake: Fake,
    life: fake::Daemon,
}

impl Daemon {
    /// Starts one, that takes up what is on the host.
    pub(super) fn on(fake: &Fake) -> Self {
        Self {
            fake: fake.clone(),
            life: fake::Daemon::on(fake),
        }
    }

    /// What its callers ask.
    pub(super) fn registry(&self) -> &Registry<Fake> {
        &self.life.registry
    }

    /// Waits for something, which must not take any time.
    pub(super) fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, String> {
        let done = self
            .life
            .run(async { tokio::time::timeout(STUCK_AFTER, work).await });
        done.map_err(|_| "it is stuck".to_owned())
    }

    /// Lets go on what nobody waits for.
    pub(super) fn calm_down(&self) -> Result<(), String> {
        self.run(turns(QUIET_AFTER))
    }

    /// What does an operation to the sandbox of this name. Outlives `self`'s borrow, so that a kill can cut it off.
    pub(super) fn perform(
        &self,
        name: &'static str,
        op: Op,
    ) -> impl Future<Output = Answer> + use<> {
        let (registry, fake) = (self.registry().clone(), self.fake.clone());
        async move {
            let done = call(&registry, &fake, name, op).await;
            done.unwrap_or_else(|error| Answer::Refused(error.reason()))
        }
    }

    /// The sandbox of this name.
    pub(super) fn handle(&self, name: &str) -> Result<Handle<FakeLive>, String> {
        let name = SandboxName::parse(name).expect("valid");
        let found = self
            .registry()
            .get(&Tenant::default(), &SandboxRef::Name(name));
        found.map_err(|error| error.to_string())
    }

    /// Lets time pass while `work`'s result is kept.
    pub(super) fn wait<T>(
        &self,
        time: Duration,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T, String> {
        let kept = self.run(work)?.map_err(|error| error.to_string())?;
        self.life.run(async { tokio::time::sleep(time).await });
        Ok(kept)
    }

    /// Begins something on the daemon's own tasks.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        self.life.spawn(work)
    }
}

async fn call(
    registry: &Registry<Fake>,
    fake: &Fake,
    name: &'static str,
    op: Op,
) -> Result<Answer> {
    let tenant = Tenant::default();
    if let Op::Acquire(resume) = op {
        let acquired = registry.acquire(&tenant, &request(name, resume)).await?;
        let id = acquired.sandbox.identity.id;
        return Ok(Answer::Acquired(id, acquired.created));
    }
    let wanted = SandboxRef::Name(SandboxName::parse(name).expect("valid"));
    let handle = match (registry.get(&tenant, &wanted), op) {
        (Ok(handle), _) => handle,
        // Nothing is there that could die.
        (Err(_), Op::HolderDies) => return Ok(Answer::Done),
        (Err(error), _) => return Err(error),
    };
    match op {
        Op::Look | Op::Acquire(_) => drop(handle.view()),
        Op::Use(resume, count) => return spawn_in(fake, &handle, resume, count).await,
        Op::Pause => drop(handle.pause().await?),
        Op::Thaw => handle.resume().await?,
        Op::Start => drop(handle.live(Resume::Auto).await?),
        Op::Stop => handle.stop().await?,
        Op::Update(label) => drop(handle.change(update(label)).await?),
        Op::Delete => handle.delete().await?,
        Op::HolderDies => fake.kill_holder(handle.id()),
    }
    Ok(Answer::Done)
}

/// Has leave to spawn for so many turns. What it spawns in must not be frozen then, nor be another start of the sandbox.
async fn spawn_in(
    fake: &Fake,
    handle: &Handle<FakeLive>,
    resume: Resume,
    count: u8,
) -> Result<Answer> {
    let admission = handle.admit(resume).await?;
    let live = admission.live();
    for _ in 0..=count {
        match fake.world().alive.get(&live.id) {
            Some(alive) if alive.life == live.life => {
                assert_eq!(
                    alive.motion,
                    Motion::Running,
                    "frozen while something is spawned"
                );
            }
            _ => return Ok(Answer::Cut),
        }
        yield_now().await;
    }
    Ok(Answer::Done)
}

/// The label that updates set.
pub(super) const LABEL: &str = "label";

fn update(label: u8) -> Change {
    Change {
        limits: RequestedLimits {
            pids: Some(100 + i64::from(label)),
            ..Default::default()
        },
        shortfall: Shortfall::Refuse,
        idle: Default::default(),
        set_labels: [(LABEL.to_owned(), label.to_string())].into(),
        remove_labels: Vec::new(),
    }
}

fn request(name: &str, resume: Resume) -> Acquire {
    Acquire {
        idle: IdleChange {
            freeze: Some(After::of(FREEZE_AFTER)),
            stop: Some(After::of(STOP_AFTER)),
            delete: None,
        },
        confine: Default::default(),
        resume,
        ..fake::acquire(name)
    }
}
