//! The leaf of one run: a v2 group for membership, kill and processor time, and a memory group for peak and kills.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;

use super::directory::Directory;
use super::error::{Error, Result};
use super::usage::{Usage, keyed_value, single_value};

/// The `runs` group of a sandbox, kept open: what making a leaf needs.
#[derive(Debug)]
pub(super) struct Runs {
    /// The host uid that may move processes into leaves.
    pub(super) base_uid: u32,
    pub(super) v2: Directory,
    /// `runs` in the v1 hierarchy of memory, if that is where memory is.
    pub(super) memory_v1: Option<Directory>,
    pub(super) memory_on_v2: bool,
    /// Kills for want of memory in leaves that are gone, where v1 counts them; `None` if an earlier daemon has removed some.
    pub(super) removed_oom_kills: Option<AtomicU64>,
}

/// The leaf of one run.
#[derive(Debug)]
pub struct RunLeaf {
    name: String,
    runs: Arc<Runs>,
    pub(super) leaf: Directory,
    kill: OwnedFd,
}

/// What the holder needs to start and to end a run; all opened by root.
#[derive(Debug)]
pub struct RunFds {
    /// v2 directory of the leaf, for clone3(CLONE_INTO_CGROUP).
    pub leaf: OwnedFd,
    /// `cgroup.kill` of the leaf: writing `1` kills everything in it, frozen processes too.
    pub kill: OwnedFd,
    /// `tasks` of the run's own v1 groups (memory): the child writes `0` to each, beside
    /// [`LaunchFds::v1_runs`](super::LaunchFds::v1_runs).
    pub v1_tasks: Vec<OwnedFd>,
}

/// What became of a leaf that was to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// It is gone, or was already.
    Removed,
    /// Processes are still in it; it stays.
    StillPopulated,
}

impl RunLeaf {
    /// Makes the groups of a run. If the second one fails, the first one goes again.
    pub(super) fn create(name: &str, runs: Arc<Runs>) -> Result<Self> {
        runs.v2.create(name)?;
        let filled = runs
            .fill(name)
            .and_then(|()| Self::open(name, Arc::clone(&runs)));
        filled.inspect_err(|_| {
            runs.remove(name).ok();
        })
    }

    /// Opens the groups of a run.
    pub(super) fn open(name: &str, runs: Arc<Runs>) -> Result<Self> {
        let leaf = runs.v2.child(name)?;
        let kill = leaf.open_at("cgroup.kill", OFlag::O_WRONLY)?;
        Ok(Self {
            name: name.into(),
            runs,
            leaf,
            kill,
        })
    }

    /// What the holder needs for this run.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn spawn_fds(&self) -> Result<RunFds> {
        let duplicate = |fd: std::os::fd::BorrowedFd<'_>| {
            fd.try_clone_to_owned().map_err(|error| Error::File {
                action: "duplicate",
                path: self.leaf.path().into(),
                source: Errno::from_raw(error.raw_os_error().unwrap_or(0)),
            })
        };
        let tasks = self
            .runs
            .memory_v1
            .iter()
            .map(|memory| memory.open_at(&format!("{}/tasks", self.name), OFlag::O_WRONLY));
        Ok(RunFds {
            leaf: duplicate(self.leaf.fd())?,
            kill: duplicate(self.kill.as_fd())?,
            v1_tasks: tasks.collect::<Result<_>>()?,
        })
    }

    /// The processes of the run, as pids of this process's pid namespace. Zombies that only wait to be reaped may be among
    /// them.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn processes(&self) -> Result<Vec<i32>> {
        let text = self.leaf.read_all("cgroup.procs")?;
        Ok(text.lines().filter_map(|pid| pid.parse().ok()).collect())
    }

    /// Kills every process of the run at once, frozen ones too. Does not wait for their end.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn kill(&self) -> Result<()> {
        nix::unistd::write(&self.kill, b"1")
            .map(drop)
            .map_err(|source| Error::File {
                action: "kill",
                path: self.leaf.path().into(),
                source,
            })
    }

    /// What the run has used until now.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let cpu = self.leaf.read("cpu.stat").ok();
        let cpu = cpu.and_then(|text| keyed_value(&text, "usage_usec"));
        let (peak_memory, oom_kills) = match &self.runs.memory_v1 {
            Some(memory) => self.memory_v1(memory),
            None => self.memory_v2(),
        };
        Usage {
            cpu_time: cpu.map(Duration::from_micros),
            peak_memory,
            oom_kills,
        }
    }

    /// Removes the run's groups if no process is left in them. Does not wait.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn remove(&self) -> Result<Removed> {
        match self.runs.remove(&self.name) {
            Ok(()) => Ok(Removed::Removed),
            Err(Error::Populated { .. }) => Ok(Removed::StillPopulated),
            Err(error) => Err(error),
        }
    }

    /// Processes of this run that were killed for want of memory, where v1 counts them.
    pub(super) fn oom_kills_v1(&self) -> Option<u64> {
        self.runs.oom_kills_v1(&self.name)
    }

    fn memory_v1(&self, memory: &Directory) -> (Option<u64>, Option<u64>) {
        let peak = memory.read(&format!("{}/memory.max_usage_in_bytes", self.name));
        let peak = peak.ok().and_then(|text| single_value(&text));
        (peak, self.runs.oom_kills_v1(&self.name))
    }

    fn memory_v2(&self) -> (Option<u64>, Option<u64>) {
        let read = |file: &str| self.leaf.read(file).ok();
        let peak = read("memory.peak").and_then(|text| single_value(&text));
        let kills = read("memory.events").and_then(|text| keyed_value(&text, "oom_kill"));
        (peak, kills)
    }
}

impl Runs {
    fn fill(&self, name: &str) -> Result<()> {
        self.v2
            .give(&format!("{name}/cgroup.procs"), self.base_uid)?;
        if let Some(memory) = &self.memory_v1 {
            memory.create(name)?;
        }
        if self.memory_on_v2 {
            self.end_together(name)?;
        }
        Ok(())
    }

    /// Want of memory ends the whole run, not the largest of its processes. The file is missing where memory could not be
    /// handed down; the effective limits have told that.
    fn end_together(&self, name: &str) -> Result<()> {
        match self.v2.write(&format!("{name}/memory.oom.group"), "1") {
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(()),
            other => other,
        }
    }

    /// Processes of this run that were killed for want of memory, where v1 counts them.
    pub(super) fn oom_kills_v1(&self, name: &str) -> Option<u64> {
        let control = self
            .memory_v1
            .as_ref()?
            .read(&format!("{name}/memory.oom_control"));
        keyed_value(&control.ok()?, "oom_kill")
    }

    /// Kills for want of memory in leaves that are gone, where v1 counts them.
    pub(super) fn removed_oom_kills(&self) -> Option<u64> {
        let removed = self.removed_oom_kills.as_ref()?;
        Some(removed.load(Ordering::Relaxed))
    }

    /// v2 last: it is the one that lists the run.
    fn remove(&self, name: &str) -> Result<()> {
        if let Some(memory) = &self.memory_v1 {
            let kills = self.oom_kills_v1(name);
            memory.remove_child(name)?;
            if let (Some(kills), Some(removed)) = (kills, &self.removed_oom_kills) {
                removed.fetch_add(kills, Ordering::Relaxed);
            }
        }
        self.v2.remove_child(name)
    }
}
