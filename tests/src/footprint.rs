//! What one daemon and its sandboxes use of the host at one moment, seen from outside: what must not grow however often
//! sandboxes come and go. It measures and does not judge.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::daemon::Daemon;
use crate::{cgroup, host};

/// One measurement. Memory is resident, in KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// Memory of the daemon.
    pub lodged_kib: u64,
    /// Memory of its launcher.
    pub launcher_kib: u64,
    /// Memory of all holders together.
    pub holders_kib: u64,
    /// Descriptors of the daemon.
    pub lodged_fds: u64,
    /// Descriptors of its launcher.
    pub launcher_fds: u64,
    /// Threads of the daemon that do not just wait for work: it keeps those of a burst for an hour.
    pub busy_threads: u64,
    /// Processes with a user id of the daemon's range, those that wait to be reaped excluded.
    pub processes: u64,
    /// Mounts of the host below the daemon's directories.
    pub mounts: u64,
    /// Groups below the daemon's parent group, in all hierarchies.
    pub cgroups: u64,
    /// Network namespaces of processes in those groups.
    pub network_namespaces: u64,
    /// Directories of sandboxes; each holds the lease of a range of user ids.
    pub sandboxes: u64,
    /// Directories that wait for their removal.
    pub trash: u64,
    /// Files in the daemon's runtime directory: sockets of holders and the like.
    pub runtime_files: u64,
}

/// A figure's name and how to read it from a measurement.
pub type Figure = (&'static str, fn(&Footprint) -> u64);

impl Footprint {
    /// Every figure, in the order of a report.
    pub const FIGURES: &'static [Figure] = &[
        ("lodged rss (KiB)", |f| f.lodged_kib),
        ("launcher rss (KiB)", |f| f.launcher_kib),
        ("holders rss (KiB)", |f| f.holders_kib),
        ("lodged fds", |f| f.lodged_fds),
        ("launcher fds", |f| f.launcher_fds),
        ("lodged busy threads", |f| f.busy_threads),
        ("processes", |f| f.processes),
        ("mounts", |f| f.mounts),
        ("cgroups", |f| f.cgroups),
        ("network namespaces", |f| f.network_namespaces),
        ("sandboxes (uid leases)", |f| f.sandboxes),
        ("trash", |f| f.trash),
        ("runtime files", |f| f.runtime_files),
    ];

    /// Measures now. Fails if the daemon does not run.
    pub fn of(daemon: &Daemon) -> Result<Self> {
        let lodged = daemon.pid()?;
        let launcher = launcher(lodged)?;
        let members = cgroup::members(&daemon.cgroup())?;
        let holders = holders(&daemon.cgroup())?;
        let (slot, state) = (daemon.slot(), daemon.state_dir());
        let processes = host::processes_of_uids(slot.uid_start(), slot.uid_count())?;
        let below = |dir: &Path| -> Result<u64> { Ok(host::mounts_below(dir)?.len() as u64) };
        Ok(Self {
            lodged_kib: host::memory_field(lodged, "VmRSS")? / 1024,
            launcher_kib: host::memory_field(launcher, "VmRSS")? / 1024,
            holders_kib: holders.iter().map(|pid| resident_kib(*pid)).sum(),
            lodged_fds: host::open_files(lodged)? as u64,
            launcher_fds: host::open_files(launcher)? as u64,
            busy_threads: host::busy_threads(lodged)? as u64,
            processes: processes.iter().filter(|(_, state)| *state != 'Z').count() as u64,
            mounts: below(slot.state())? + below(slot.home())?,
            cgroups: cgroup::containing(&daemon.cgroup(), "")?.len() as u64,
            network_namespaces: network_namespaces(&members),
            sandboxes: entries(&state.join("sandboxes")),
            trash: entries(&state.join("trash")),
            runtime_files: files_below(&slot.home().join("run")),
        })
    }
}

/// Pid of a daemon's launcher: its only child.
pub fn launcher(lodged: i32) -> Result<i32> {
    let children = host::children(lodged)?;
    ensure!(
        children.len() == 1,
        "lodged has {} children, not its launcher alone",
        children.len()
    );
    Ok(children[0])
}

/// Pids in the holders' groups below the parent group `parent`.
fn holders(parent: &str) -> Result<BTreeSet<i32>> {
    let mut pids = BTreeSet::new();
    for group in cgroup::containing(parent, "holder")? {
        // One that goes meanwhile has nobody in it.
        let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
    }
    Ok(pids)
}

/// Zero for a process that has gone.
fn resident_kib(pid: i32) -> u64 {
    host::memory_field(pid, "VmRSS").unwrap_or_default() / 1024
}

fn network_namespaces(pids: &BTreeSet<i32>) -> u64 {
    let links = pids
        .iter()
        .filter_map(|pid| fs::read_link(format!("/proc/{pid}/ns/net")).ok());
    links.collect::<BTreeSet<_>>().len() as u64
}

/// Zero for a directory that is not there.
fn entries(dir: &Path) -> u64 {
    fs::read_dir(dir).into_iter().flatten().count() as u64
}

fn files_below(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => files_below(&entry.path()),
            _ => 1,
        })
        .sum()
}

/// Processes in the groups of the daemon's sandboxes that cannot be interrupted: stuck in the kernel.
pub fn stuck(daemon: &Daemon) -> Result<Vec<i32>> {
    let members = cgroup::members(&daemon.cgroup()).context("processes of the sandboxes")?;
    let in_d_state = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name before it may hold blanks and brackets of its own.
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('D'))
    };
    Ok(members.into_iter().filter(in_d_state).collect())
}
