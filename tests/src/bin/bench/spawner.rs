//! The host's own speed: posix_spawn and wait of `bash -c true`, without any sandbox.
//!
//! Runs in a process of its own, this program again, that has changed its root to the unpacked base image and its user
//! to the sandbox's: the same bash, the same libraries, the same environment and user as a run in Lodge. The time is
//! taken there, so that talking to it does not count. `std::process::Command` spawns by posix_spawn here, since nothing
//! is asked of it that posix_spawn cannot do (checked by `strace`: CLONE_VM and CLONE_VFORK).

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::chroot;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};

use crate::world::Identity;

/// First argument of the process that spawns.
const ROLE: &str = "--spawner";
/// Spawns in one request at most.
const MAX_AT_ONCE: usize = 1_000;

/// Where and as whom the spawning process works; its environment is the one that it passes on.
pub(crate) struct Job {
    root: PathBuf,
    uid: u32,
    gid: u32,
    workdir: PathBuf,
}

impl Job {
    /// The job, if these arguments are a spawning process's.
    pub(crate) fn from_args(mut args: impl Iterator<Item = String>) -> Result<Option<Self>> {
        if args.next().as_deref() != Some(ROLE) {
            return Ok(None);
        }
        let mut next = || args.next().context("an argument of the spawner is missing");
        Ok(Some(Self {
            root: next()?.into(),
            uid: next()?.parse()?,
            gid: next()?.parse()?,
            workdir: next()?.into(),
        }))
    }
}

/// The spawning process: answers each line (how many at once) with as many lines of nanoseconds.
pub(crate) fn serve(job: &Job) -> Result<()> {
    // Opened before the root changes: the image has no device files.
    let null = File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .context("open /dev/null")?;
    chroot(&job.root).context("change the root")?;
    std::env::set_current_dir(&job.workdir).context("change to the working directory")?;
    setgroups(&[]).context("drop groups")?;
    setgid(Gid::from_raw(job.gid)).context("become the group")?;
    setuid(Uid::from_raw(job.uid)).context("become the user")?;
    for line in std::io::stdin().lines() {
        let count: usize = line?.trim().parse().context("how many to spawn")?;
        ensure!((1..=MAX_AT_ONCE).contains(&count), "{count} spawns at once");
        let mut answer = String::new();
        for time in spawn_at_once(count, &null)? {
            answer.push_str(&format!("{}\n", time.as_nanos()));
        }
        std::io::stdout().write_all(answer.as_bytes())?;
    }
    Ok(())
}

/// Spawns so many and waits for all; the time of each is from the first spawn to its own end.
fn spawn_at_once(count: usize, null: &File) -> Result<Vec<Duration>> {
    let started = Instant::now();
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        // Reaped below, by waiting for any child: there are no others.
        let _ = Command::new("/bin/bash")
            .args(["-c", "true"])
            .stdin(Stdio::from(null.try_clone()?))
            .stdout(Stdio::from(null.try_clone()?))
            .stderr(Stdio::from(null.try_clone()?))
            .spawn()
            .context("spawn bash")?;
        // What has ended already is noted now, not when the last one is spawned.
        while times.len() + 1 < count && reap(WaitPidFlag::WNOHANG)? {
            times.push(started.elapsed());
        }
    }
    while times.len() < count {
        ensure!(
            reap(WaitPidFlag::empty())?,
            "fewer children than were spawned"
        );
        times.push(started.elapsed());
    }
    Ok(times)
}

/// Reaps a child that ended well; false if none has ended.
fn reap(flags: WaitPidFlag) -> Result<bool> {
    match waitpid(None, Some(flags)) {
        Ok(WaitStatus::Exited(_, 0)) => Ok(true),
        Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => Ok(false),
        Ok(other) => bail!("bash -c true ended with {other:?}"),
        Err(errno) => Err(errno).context("wait for bash"),
    }
}

/// Our side of the spawning process, which ends when this is dropped.
pub(crate) struct Spawner {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Spawner {
    /// Starts it.
    pub(crate) fn start(identity: &Identity, root: &std::path::Path) -> Result<Self> {
        let mut child = Command::new("/proc/self/exe")
            .arg(ROLE)
            .arg(root)
            .args([identity.uid.to_string(), identity.gid.to_string()])
            .arg(&identity.workdir)
            .env_clear()
            .envs(identity.env.iter().map(|(k, v)| (k, v)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the spawner")?;
        let requests = child.stdin.take().context("the spawner's stdin is piped")?;
        let answers = child
            .stdout
            .take()
            .context("the spawner's stdout is piped")?;
        Ok(Self {
            child,
            requests,
            answers: BufReader::new(answers),
        })
    }

    /// Spawns so many at once; milliseconds of each.
    pub(crate) fn spawn(&mut self, count: usize) -> Result<Vec<f64>> {
        writeln!(self.requests, "{count}").context("ask the spawner")?;
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let mut line = String::new();
            ensure!(self.answers.read_line(&mut line)? > 0, "the spawner ended");
            let nanoseconds: u64 = line.trim().parse().context("the spawner's answer")?;
            times.push(Duration::from_nanos(nanoseconds).as_secs_f64() * 1e3);
        }
        Ok(times)
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
