//! What a sandbox uses.

use std::time::Duration;

use lodge_proto::v1 as pb;

use crate::error::Result;
use crate::info::SandboxState;
use crate::wire::duration;

/// What a sandbox uses now, by the kernel's own counters. A figure that its host does not have, or that a sandbox
/// without processes has not, is `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SandboxStats {
    /// What it is doing.
    pub state: SandboxState,
    /// Memory of all runs together, in bytes; the cache of files that they read and wrote counts.
    pub memory_bytes: Option<u64>,
    /// The most that it was since the sandbox was started, in bytes.
    pub memory_peak_bytes: Option<u64>,
    /// The limit that the kernel holds, in bytes.
    pub memory_limit_bytes: Option<u64>,
    /// Processor time of all runs since the sandbox was started.
    pub cpu_time: Option<Duration>,
    /// Processes and threads of all runs.
    pub pids: Option<u64>,
    /// The limit that the kernel holds.
    pub pids_limit: Option<u64>,
    /// Processes that the kernel killed for want of memory since the sandbox was started. `None` on cgroup v1 if the
    /// daemon was restarted since.
    pub oom_kills: Option<u64>,
    /// Live runs.
    pub live_runs: u32,
    /// Streams of runs that are open.
    pub open_streams: u32,
    /// Ended runs that are still known.
    pub kept_runs: u32,
    /// Bytes on disk of the logs of all its runs.
    pub log_bytes: u64,
    /// Since its last start; `None` if it is not started.
    pub uptime: Option<Duration>,
    /// Bytes on disk of its files, those of the image excluded; also of one that is stopped.
    pub disk_bytes: Option<u64>,
    /// The limit that the storage driver holds, in bytes.
    pub disk_limit_bytes: Option<u64>,
    /// Its files, directories and links, where the storage driver counts them.
    pub inodes: Option<u64>,
    /// The limit that the storage driver holds.
    pub inodes_limit: Option<u64>,
}

impl SandboxStats {
    pub(crate) fn from_wire(stats: pb::SandboxStats) -> Result<Self> {
        Ok(Self {
            state: SandboxState::from_wire(stats.state())?,
            memory_bytes: stats.memory_bytes,
            memory_peak_bytes: stats.memory_peak_bytes,
            memory_limit_bytes: stats.memory_limit_bytes,
            cpu_time: stats.cpu_time.map(duration).transpose()?,
            pids: stats.pids,
            pids_limit: stats.pids_limit,
            oom_kills: stats.oom_kills,
            live_runs: stats.live_runs,
            open_streams: stats.open_streams,
            kept_runs: stats.kept_runs,
            log_bytes: stats.log_bytes,
            uptime: stats.uptime.map(duration).transpose()?,
            disk_bytes: stats.disk_bytes,
            disk_limit_bytes: stats.disk_limit_bytes,
            inodes: stats.inodes,
            inodes_limit: stats.inodes_limit,
        })
    }
}
