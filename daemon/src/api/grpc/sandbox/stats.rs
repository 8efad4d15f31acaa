//! `Stats`: figures on the wire.

use std::time::Duration;

use lodge_proto::v1 as wire;

use super::messages::state_to_wire;
use crate::sandbox::stats::Stats;

pub(super) fn stats_to_wire(stats: Stats) -> wire::SandboxStats {
    let usage = stats.usage;
    wire::SandboxStats {
        state: state_to_wire(stats.state).into(),
        memory_bytes: usage.memory,
        memory_peak_bytes: usage.memory_peak,
        memory_limit_bytes: usage.memory_limit,
        cpu_time: usage.cpu_time.and_then(duration_to_wire),
        pids: usage.pids,
        pids_limit: usage.pids_limit,
        oom_kills: usage.oom_kills,
        live_runs: stats.live_runs,
        open_streams: stats.open_streams,
        kept_runs: stats.kept_runs,
        log_bytes: stats.log_bytes,
        uptime: stats.uptime.and_then(duration_to_wire),
        disk_bytes: stats.disk.bytes,
        disk_limit_bytes: stats.disk.limit_bytes,
        inodes: stats.disk.inodes,
        inodes_limit: stats.disk.inodes_limit,
    }
}

/// `None` beyond 10,000 years.
fn duration_to_wire(duration: Duration) -> Option<prost_types::Duration> {
    duration.try_into().ok()
}
