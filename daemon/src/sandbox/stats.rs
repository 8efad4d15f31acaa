//! What a sandbox uses now. Wakes nothing, and is no activity. A figure that cannot be had is absent, never a guess.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lodge_kernel::cgroup::SandboxUsage;

use super::Handle;
use super::disk::Disk;
use super::id::SandboxId;
use super::live::Live;
use super::platform::Platform;
use super::state::State;
use crate::error::{Error, Result};
use crate::holder::ProcStat;
use crate::storage::DiskUsage;

/// Bytes of a block, as `stat` counts them.
const BLOCK_BYTES: u64 = 512;

/// What a sandbox uses.
#[derive(Debug, Clone)]
pub struct Stats {
    /// What it is doing.
    pub state: State,
    /// By the kernel's counters; all absent where it is not started.
    pub usage: SandboxUsage,
    /// Live runs.
    pub live_runs: u32,
    /// Streams of runs that are open.
    pub open_streams: u32,
    /// Ended runs that are still known.
    pub kept_runs: u32,
    /// Bytes on disk of the logs of all its runs.
    pub log_bytes: u64,
    /// Since its last start.
    pub uptime: Option<Duration>,
    /// What its files take, by the storage driver.
    pub disk: DiskUsage,
}

/// What `sandbox` uses.
pub async fn stats(platform: &Arc<Platform>, sandbox: &Handle) -> Result<Stats> {
    let (platform, id, live) = (
        Arc::clone(platform),
        sandbox.id().clone(),
        sandbox.live_now(),
    );
    // Reads the kernel's files and walks the logs: not for a thread that serves others.
    let read = move || {
        let (usage, uptime) = live.as_ref().map(of_live).unwrap_or_default();
        let logs = bytes_on_disk(&platform.store.runs_dir(&id));
        (
            usage,
            uptime,
            logs,
            disk_usage(&platform, &id, live.as_ref()),
        )
    };
    let (usage, uptime, log_bytes, disk) =
        tokio::task::spawn_blocking(read).await.map_err(|error| {
            Error::internal("INTERNAL", "reading the figures failed", error)
                .hint("the daemon's log says where")
        })?;
    let view = sandbox.view();
    Ok(Stats {
        state: view.state,
        usage,
        live_runs: view.live_runs,
        open_streams: view.open_streams,
        kept_runs: u32::try_from(sandbox.runs().kept_count()).unwrap_or(u32::MAX),
        log_bytes,
        uptime,
        disk,
    })
}

/// What the files of a sandbox take, started or not. Blocks.
pub(crate) fn disk_usage(platform: &Platform, id: &SandboxId, live: Option<&Live>) -> DiskUsage {
    match live {
        Some(live) => live.disk.usage(),
        None => Disk::of(platform, id, None).usage(),
    }
}

fn of_live(live: &Live) -> (SandboxUsage, Option<Duration>) {
    let cgroup = Arc::clone(&live.cgroup);
    (cgroup.usage(), age(live.holder.pid()))
}

/// How long a process has lived, by the clock that no change of the time of day moves.
fn age(pid: i32) -> Option<Duration> {
    let stat = ProcStat::of(pid).ok()?;
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let seconds: f64 = uptime.split(' ').next()?.parse().ok()?;
    let up = Duration::try_from_secs_f64(seconds).ok()?;
    up.checked_sub(stat.started_after()?)
}

/// What the files of all runs take. A hole takes nothing, and a file that goes meanwhile neither.
fn bytes_on_disk(runs_dir: &Path) -> u64 {
    let runs = entries(runs_dir).filter(|run| run.file_type().is_ok_and(|kind| kind.is_dir()));
    let files = runs.flat_map(|run| entries(&run.path()));
    let blocks = files.filter_map(|file| Some(file.metadata().ok()?.blocks()));
    blocks.sum::<u64>() * BLOCK_BYTES
}

fn entries(dir: &Path) -> impl Iterator<Item = fs::DirEntry> + use<> {
    fs::read_dir(dir).into_iter().flatten().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_age_is_known_and_that_of_nobody_is_not() {
        let own = i32::try_from(std::process::id()).expect("a pid");
        assert!(age(own).is_some_and(|age| age < Duration::from_secs(86_400)));
        assert_eq!(age(i32::MAX), None);
    }

    #[test]
    fn logs_count_with_what_they_take_and_holes_do_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let run = dir.path().join("run");
        fs::create_dir(&run).expect("a run");
        fs::write(run.join("stdout"), vec![b'x'; 64 << 10]).expect("a log");
        let sparse = fs::File::create(run.join("stderr")).expect("a log");
        sparse.set_len(1 << 30).expect("a hole");
        let bytes = bytes_on_disk(dir.path());
        assert!((64 << 10..1 << 20).contains(&bytes), "{bytes}");
        assert_eq!(bytes_on_disk(&dir.path().join("none")), 0);
    }
}
