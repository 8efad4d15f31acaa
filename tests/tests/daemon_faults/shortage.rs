//! Attacks D13 and D14: the host has no descriptors, processes, threads or memory left for the daemon.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use lodge_proto::v1::{self as pb, SandboxState};
use lodge_tests::daemon::Daemon;
use lodge_tests::wait::{SOON, until_blocking};
use rustix::process::{Resource, getrlimit, prlimit};
use tokio::task::JoinSet;
use tonic::Code;

use crate::{FOUND_OUT, launcher_of, state};

/// Sets how many files a process may have open, both limits.
fn limit_files(pid: i32, soft: u64) -> Result<()> {
    let pid = rustix::process::Pid::from_raw(pid).context("a pid")?;
    let new = rustix::process::Rlimit {
        current: Some(soft),
        maximum: getrlimit(Resource::Nofile).maximum,
    };
    prlimit(Some(pid), Resource::Nofile, new)?;
    Ok(())
}

/// Without descriptors calls are refused with a reason, nothing panics, and it all works again once there are some.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d13_no_descriptors() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("descriptors").await?;
    ensure!(room.run("echo fine").await?.ok()? == "fine");
    limit_files(daemon.pid()?, 16)?;
    for _ in 0..5 {
        let refused = room.run("echo x").send().await;
        let status = refused.err().context("a run started without descriptors")?;
        ensure!(status.code() == Code::ResourceExhausted, "{status:?}");
    }
    let refused = daemon.api().room("another").await;
    ensure!(refused.is_err(), "a sandbox started without descriptors");
    daemon.api().health().await?;
    limit_files(daemon.pid()?, 4096)?;
    ensure!(room.run("echo fine").await?.ok()? == "fine");
    daemon.api().room("another").await?;
    no_panic(&daemon)
}

fn no_panic(daemon: &Daemon) -> Result<()> {
    let log = fs::read_to_string(daemon.log_file())?;
    ensure!(!log.contains("panic"), "it panicked:\n{log}");
    Ok(())
}

/// A group of the pids controller of the test's own, gone when it is dropped.
struct PidsGroup(PathBuf);

impl PidsGroup {
    fn new(daemon: &Daemon) -> Result<Self> {
        let name = format!("{}-few", daemon.cgroup());
        let v1 = Path::new("/sys/fs/cgroup/pids");
        let top = if v1.is_dir() {
            v1
        } else {
            Path::new("/sys/fs/cgroup")
        };
        let dir = top.join(name);
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        Ok(Self(dir))
    }

    /// No process of `pid`'s may fork or start a thread from here on.
    fn hold(&self, pid: i32) -> Result<()> {
        fs::write(self.0.join("cgroup.procs"), pid.to_string())?;
        Ok(fs::write(self.0.join("pids.max"), "1")?)
    }

    fn let_go(&self) -> Result<()> {
        Ok(fs::write(self.0.join("pids.max"), "max")?)
    }
}

impl Drop for PidsGroup {
    fn drop(&mut self) {
        let _ = self.let_go();
        let root = self.0.parent().map(|top| top.join("cgroup.procs"));
        let procs = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        for pid in procs.lines() {
            let _ = root.as_ref().map(|root| fs::write(root, pid));
        }
        let _ = fs::remove_dir(&self.0);
    }
}

/// A launcher that cannot fork: the start is refused with a reason, and works once it can.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d13_launcher_cannot_fork() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("there").await?;
    let few = PidsGroup::new(&daemon)?;
    few.hold(launcher_of(&daemon, None)?)?;
    let request = pb::AcquireRequest {
        name: "refused".into(),
        ..Default::default()
    };
    let status = daemon
        .api()
        .try_acquire(request)
        .await
        .err()
        .context("it was started")?;
    ensure!(status.code() == Code::ResourceExhausted, "{status:?}");
    ensure!(room.run("echo fine").await?.ok()? == "fine");
    few.let_go()?;
    daemon.api().room("refused").await?;
    no_panic(&daemon)
}

/// A daemon that gets no more threads answers all the same.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d13_no_more_threads() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("threads").await?;
    let few = PidsGroup::new(&daemon)?;
    few.hold(daemon.pid()?)?;
    let mut calls = JoinSet::new();
    for n in 0..40 {
        let (room, api) = (room.clone(), daemon.api().clone());
        calls.spawn(async move {
            if n % 4 == 0 {
                api.room(&format!("threads-{n}")).await.map(drop)
            } else {
                room.run("echo fine").await?.ok().map(drop)
            }
        });
    }
    let ended = tokio::time::timeout(FOUND_OUT, calls.join_all()).await;
    for call in ended.context("a call hangs")? {
        call?;
    }
    few.let_go()?;
    ensure!(room.run("echo fine").await?.ok()? == "fine");
    no_panic(&daemon)
}

/// The OOM killer takes the daemon in the middle of a call: sandboxes and runs go on, and the next daemon has them all.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d14_oom_killer_takes_the_daemon() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("oom").await?;
    let mut live = room
        .run("echo begun; until [ -e stop ]; do sleep 0.05; done")
        .start()
        .await?;
    live.wait_for("begun").await?;
    let memory = MemoryGroup::new(&daemon)?;
    memory.hold(daemon.pid()?)?;
    let load = tokio::spawn(async move {
        // Large scripts take memory that is not there.
        while room
            .run(format!(": '{}'", "x".repeat(7 << 20)))
            .send()
            .await
            .is_ok()
        {}
        room
    });
    until_blocking("the kernel has killed the daemon", SOON, || {
        Ok(daemon.has_ended()?.then_some(()))
    })?;
    let room = load.await?;
    drop(memory);
    daemon.start_again()?;
    ensure!(state(&room).await? == SandboxState::Running);
    ensure!(
        !room.processes_of(&live.run_id).await?.is_empty(),
        "the run went with the daemon"
    );
    room.run("touch stop").await?.exited(0)?;
    daemon.stop()
}

/// A memory group of the test's own with next to no memory, gone when it is dropped.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    fn new(daemon: &Daemon) -> Result<Self> {
        let name = format!("{}-little", daemon.cgroup());
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let (top, limit) = if v1.is_dir() {
            (v1, "memory.limit_in_bytes")
        } else {
            (Path::new("/sys/fs/cgroup"), "memory.max")
        };
        let dir = top.join(name);
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        fs::write(dir.join(limit), (1 << 20).to_string())?;
        Ok(Self(dir))
    }

    fn hold(&self, pid: i32) -> Result<()> {
        Ok(fs::write(self.0.join("cgroup.procs"), pid.to_string())?)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = until_blocking("the memory group is gone", SOON, || {
            let _ = fs::remove_dir(&self.0);
            Ok((!self.0.exists()).then_some(()))
        });
    }
}
