//! An attacked sandbox beside a neighbour, with canaries planted, and what must hold after every attack:
//!
//! 1. the neighbour's `true` returns 0 within a second, and a health check within 100 ms;
//! 2. no canary was seen from inside the attacked sandbox;
//! 3. files, settings and mounts of the host, and its clock, are as before;
//! 4. the daemon's descriptors, threads and memory are within bounds;
//! 5. the attacked sandbox is deleted within 5 s and leaves no cgroup, mount, process of its user ids, state or lease.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use lodge_proto::v1 as pb;

use crate::daemon::{Daemon, Images, Options};
use crate::live::{Live, contains};
use crate::room::{Ran, Room};
use crate::slot::UID_BLOCK;
use crate::wait::until;
use crate::{cgroup, host, image, storage};

/// A neighbour's `true` takes less than this, during and after any attack.
pub const NEIGHBOUR_WITHIN: Duration = Duration::from_secs(1);
/// A health check takes less than this.
pub const HEALTH_WITHIN: Duration = Duration::from_millis(100);
/// One late answer may be the fault of whatever else the machine does; so many in a row are not.
const ATTEMPTS: usize = 5;
/// The attacked sandbox is gone within this time.
const DELETED_WITHIN: Duration = Duration::from_secs(5);
/// How far the host's clock may be from where it should be: an attack would set it by more.
const CLOCK_SLACK: Duration = Duration::from_secs(2);
/// The daemon's use of the host is back to normal within this time: threads for blocking calls stay for 10 s.
const SETTLED_WITHIN: Duration = Duration::from_secs(15);
/// Descriptors that the daemon may hold more than before.
const MORE_FILES: usize = 16;
/// Threads that the daemon may have more than before: its pool for blocking calls grows at first.
const MORE_THREADS: usize = 64;
/// Memory that the daemon may hold more than before.
const MORE_MEMORY: u64 = 48 << 20;
/// Processor limit of the attacked sandbox, in thousandths of one CPU: the neighbour is on the same machine.
const ATTACKER_CPU_MILLIS: i64 = 1000;

/// What the neighbour does all the while.
const NEIGHBOUR_DOES: &str = "exec sleep 3000";

/// Values that must never be seen from inside the attacked sandbox.
#[derive(Debug, Clone)]
pub struct Canaries {
    /// In a file of the host that only root may read, named `CANARY_HOST`.
    pub host: String,
    /// In the environment of the neighbour's processes.
    pub neighbour: String,
    /// In the environment of the daemon.
    pub daemon: String,
}

/// An attacked sandbox, its neighbour, and how the host was before.
#[derive(Debug)]
pub struct Arena {
    /// The sandbox that attacks.
    pub attacker: Room,
    /// The sandbox beside it.
    pub neighbour: Room,
    /// What must not be seen.
    pub canaries: Canaries,
    /// The neighbour's lasting process.
    sleeper: Live,
    host_before: BTreeMap<String, String>,
    daemon_before: DaemonUse,
    clock_before: (SystemTime, Instant),
    /// The daemon.
    pub daemon: Daemon,
}

#[derive(Debug, Clone, Copy)]
struct DaemonUse {
    files: usize,
    threads: usize,
    memory: u64,
}

impl DaemonUse {
    fn of(pid: i32) -> Result<Self> {
        let (files, threads) = (host::open_files(pid)?, host::threads(pid)?);
        Ok(Self {
            files,
            threads,
            memory: host::memory_field(pid, "VmRSS")?,
        })
    }
}

impl Arena {
    /// With default limits, but one CPU.
    pub async fn new() -> Result<Self> {
        Self::with_limits(pb::Limits::default()).await
    }

    /// With these limits for the attacker.
    pub async fn with_limits(limits: pb::Limits) -> Result<Self> {
        Self::build(Options::default(), limits).await
    }

    /// With these limits for the attacker, and with protections switched off.
    pub async fn weakened(protections: &str, limits: pb::Limits) -> Result<Self> {
        Self::build(Options::weakened(protections), limits).await
    }

    /// With this configuration of the daemon.
    pub async fn with_config(config: &str) -> Result<Self> {
        let options = Options {
            config: config.into(),
            ..Options::default()
        };
        Self::build(options, pb::Limits::default()).await
    }

    /// With an image directory of its own, that holds one small image.
    pub async fn with_own_images() -> Result<Self> {
        let options = Options {
            images: Images::Own,
            ..Options::default()
        };
        Self::build(options, pb::Limits::default()).await
    }

    async fn build(mut options: Options, mut limits: pb::Limits) -> Result<Self> {
        let canaries = Canaries {
            host: canary()?,
            neighbour: canary()?,
            daemon: canary()?,
        };
        options
            .env
            .push(("CANARY_DAEMON".into(), canaries.daemon.clone()));
        let own_images = matches!(options.images, Images::Own);
        let daemon = Daemon::start(options).await?;
        fs::write(host_canary_file(&daemon), &canaries.host)?;
        if own_images {
            daemon
                .api()
                .import(image::BASE, &image::tiny()?.finish())
                .await?;
        }
        let env = [("CANARY_NEIGH".to_owned(), canaries.neighbour.clone())].into();
        let request = pb::AcquireRequest {
            name: "neighbour".into(),
            env,
            ..Default::default()
        };
        let neighbour = daemon.api().acquire(request).await?;
        let sleeper = neighbour
            .run(NEIGHBOUR_DOES)
            .with(no_timeout)
            .start()
            .await?;
        limits.cpu_millis.get_or_insert(ATTACKER_CPU_MILLIS);
        let request = pb::AcquireRequest {
            name: "attacker".into(),
            limits: Some(limits),
            ..Default::default()
        };
        let attacker = daemon.api().acquire(request).await?;
        attacker.run("true").await?.exited(0)?;
        neighbour.run("true").await?.exited(0)?;
        Ok(Self {
            host_before: host::fingerprint(&[host_canary_file(&daemon)])?,
            daemon_before: DaemonUse::of(daemon.pid()?)?,
            clock_before: (SystemTime::now(), Instant::now()),
            attacker,
            neighbour,
            canaries,
            sleeper,
            daemon,
        })
    }

    /// Runs a script as root in the attacker and makes sure that no canary is in what comes back.
    pub async fn attack(&self, script: &str) -> Result<Ran> {
        self.unseen(self.attacker.run(script).root().await?)
    }

    /// Runs a Python program as root in the attacker and makes sure that no canary is in what comes back.
    pub async fn attack_python(&self, program: &str) -> Result<Ran> {
        self.unseen(self.attacker.python(program).root().await?)
    }

    /// Passes a result on if no canary is in it.
    pub fn unseen(&self, ran: Ran) -> Result<Ran> {
        for (whose, canary) in self.canaries.all() {
            for bytes in [&ran.out.head, &ran.out.tail, &ran.err.head, &ran.err.tail] {
                ensure!(
                    !contains(bytes, canary.as_bytes()),
                    "{whose} canary was seen: {}",
                    ran.story()
                );
            }
        }
        Ok(ran)
    }

    /// The host's canary file.
    pub fn host_canary_file(&self) -> PathBuf {
        host_canary_file(&self.daemon)
    }

    /// The neighbour and the daemon answer in time. For use during an attack.
    pub async fn others_are_fine(&self) -> Result<()> {
        let mut slowest = (Duration::ZERO, Duration::ZERO);
        for _ in 0..ATTEMPTS {
            let ran = self
                .neighbour
                .run("true")
                .await
                .context("the neighbour's `true`")?;
            ran.exited(0)?;
            let health = self.daemon.api().health().await?;
            if ran.took < NEIGHBOUR_WITHIN && health < HEALTH_WITHIN {
                return Ok(());
            }
            slowest = (slowest.0.max(ran.took), slowest.1.max(health));
        }
        bail!(
            "late {ATTEMPTS} times in a row: `true` {:?}, health {:?}",
            slowest.0,
            slowest.1
        )
    }

    /// Watches neighbour and daemon until the attack has ended.
    pub async fn while_others_are_fine<T>(
        &self,
        attack: impl IntoFuture<Output = Result<T>>,
    ) -> Result<T> {
        let attack = attack.into_future();
        tokio::pin!(attack);
        loop {
            tokio::select! {
                biased;
                outcome = &mut attack => return outcome,
                fine = self.others_are_fine() => fine.context("during the attack")?,
            }
        }
    }

    /// As [`check`](Self::check), after an attack of whose run no process may be left.
    pub async fn check_after(self, ran: &Ran) -> Result<()> {
        let left = self.attacker.processes_of(&ran.result.run_id).await?;
        ensure!(left.is_empty(), "processes {left:?} are left");
        self.attack("true").await?.exited(0)?;
        self.check().await
    }

    /// Checks everything that must hold after an attack, and deletes the attacker.
    pub async fn check(self) -> Result<()> {
        self.others_are_fine().await?;
        let after = host::fingerprint(&[self.host_canary_file()])?;
        for (what, before) in &self.host_before {
            ensure!(
                after.get(what) == Some(before),
                "{what} of the host changed"
            );
        }
        self.clock_is_right()?;
        self.delete_leaves_nothing().await?;
        self.daemon_is_within_bounds().await?;
        self.neighbour_survived().await
    }

    fn clock_is_right(&self) -> Result<()> {
        let (wall, monotonic) = self.clock_before;
        let expected = wall + monotonic.elapsed();
        let now = SystemTime::now();
        let off = now
            .duration_since(expected)
            .unwrap_or_else(|e| e.duration());
        ensure!(off < CLOCK_SLACK, "the host's clock is off by {off:?}");
        Ok(())
    }

    async fn delete_leaves_nothing(&self) -> Result<()> {
        let base = self.attacker.uid_base(&self.daemon.cgroup())?;
        let start = Instant::now();
        self.attacker
            .delete()
            .await
            .context("delete the attacker")?;
        ensure!(
            start.elapsed() < DELETED_WITHIN,
            "delete took {:?}",
            start.elapsed()
        );
        leaves_nothing(&self.daemon, self.attacker.id(), base).await
    }

    async fn daemon_is_within_bounds(&self) -> Result<()> {
        let before = self.daemon_before;
        let pid = self.daemon.pid()?;
        until(
            "the daemon's descriptors, threads and memory are within bounds",
            SETTLED_WITHIN,
            || async {
                let now = DaemonUse::of(pid)?;
                let fine = now.files <= before.files + MORE_FILES
                    && now.threads <= before.threads + MORE_THREADS
                    && now.memory <= before.memory + MORE_MEMORY;
                Ok(fine.then_some(()))
            },
        )
        .await
        .with_context(|| format!("before {before:?}, after {:?}", DaemonUse::of(pid)))
    }

    async fn neighbour_survived(&self) -> Result<()> {
        let processes = self.neighbour.processes_of(&self.sleeper.run_id).await?;
        ensure!(
            processes.len() == 1,
            "the neighbour's process is gone: {processes:?}"
        );
        Ok(())
    }
}

impl Canaries {
    /// Whose, and the value.
    pub fn all(&self) -> [(&'static str, &str); 3] {
        [
            ("the host's", &self.host),
            ("the neighbour's", &self.neighbour),
            ("the daemon's", &self.daemon),
        ]
    }
}

/// A value that is nowhere else.
pub fn canary() -> Result<String> {
    let bytes = fs::read("/proc/sys/kernel/random/uuid").context("a random value")?;
    Ok(format!("canary-{}", String::from_utf8(bytes)?.trim()))
}

/// Takes the time limit away.
pub fn no_timeout(spec: &mut pb::RunSpec) {
    spec.timeout = Some(prost_types::Duration::default());
}

fn host_canary_file(daemon: &Daemon) -> PathBuf {
    daemon.slot().home().join("CANARY_HOST")
}

/// Fails if a deleted sandbox left a cgroup, a process of its ids, a mount, or anything in the state directory.
pub async fn leaves_nothing(daemon: &Daemon, id: &str, uid_base: u32) -> Result<()> {
    // The host's init reaps the holder; that it does so quickly is not ours to promise.
    until(
        "no process of the deleted sandbox is left",
        DELETED_WITHIN,
        || async {
            let left = host::processes_of_uids(uid_base, UID_BLOCK)?;
            Ok(left.iter().all(|(_, state)| *state == 'Z').then_some(()))
        },
    )
    .await?;
    let groups = cgroup::containing(&daemon.cgroup(), id)?;
    ensure!(groups.is_empty(), "cgroups are left: {groups:?}");
    let mounts = host::mounts_below(daemon.slot().state())?;
    ensure!(mounts.is_empty(), "mounts are left: {mounts:?}");
    // The name is free at once; what the files were goes in the background.
    until(
        "no state speaks of the deleted sandbox",
        DELETED_WITHIN,
        || async {
            let in_state = find_mention(&daemon.state_dir(), id)?;
            let in_runtime = find_mention(&daemon.slot().home().join("run"), id)?;
            Ok((in_state.is_none() && in_runtime.is_none()).then_some(()))
        },
    )
    .await
    .with_context(|| format!("{:?}", find_mention(&daemon.state_dir(), id)))
}

/// Records and journals are smaller; layers, pools and what sandboxes wrote may be of any size.
const SMALL_FILE: u64 = 1 << 20;

/// The first path below `top` that has `word` in its name or, for a small file, in its content. Trees that sandboxes have for
/// themselves are not looked through.
pub fn find_mention(top: &Path, word: &str) -> Result<Option<PathBuf>> {
    for entry in fs::read_dir(top).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_name().to_string_lossy().contains(word) {
            return Ok(Some(path));
        }
        // What is being removed meanwhile mentions nothing.
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        if kind.is_dir() {
            if !storage::is_subvolume(&path)
                && let Some(found) = find_mention(&path, word)?
            {
                return Ok(Some(found));
            }
        } else if kind.is_file()
            && entry.metadata().is_ok_and(|meta| meta.len() <= SMALL_FILE)
            && contains(&fs::read(&path).unwrap_or_default(), word.as_bytes())
        {
            return Ok(Some(path));
        }
    }
    Ok(None)
}
