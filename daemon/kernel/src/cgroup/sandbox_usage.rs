//! What all runs of a sandbox use together, from the counters of its `runs` group. A figure that cannot be had is `None`,
//! never a guess.

use std::path::Path;
use std::time::Duration;

use super::controller::Controller;
use super::limits::Version;
use super::sandbox::SandboxGroup;
use super::usage::{keyed_value, single_value};

/// The counters of all runs of a sandbox, ended ones included, since its groups were made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SandboxUsage {
    /// Bytes charged now, page cache included.
    pub memory: Option<u64>,
    /// The most that it was.
    pub memory_peak: Option<u64>,
    /// The limit in force, in bytes.
    pub memory_limit: Option<u64>,
    /// Processor time in user and kernel mode.
    pub cpu_time: Option<Duration>,
    /// Processes and threads now.
    pub pids: Option<u64>,
    /// The limit in force.
    pub pids_limit: Option<u64>,
    /// Processes that the kernel killed for want of memory.
    pub oom_kills: Option<u64>,
}

impl SandboxGroup {
    /// What its runs use now. Reads eight files at most.
    #[must_use]
    pub fn usage(&self) -> SandboxUsage {
        let cpu = self.runs.v2.read("cpu.stat").ok();
        let cpu = cpu.and_then(|text| keyed_value(&text, "usage_usec"));
        let mut usage = SandboxUsage {
            cpu_time: cpu.map(Duration::from_micros),
            ..SandboxUsage::default()
        };
        if let Some((path, version)) = self.limited_group(Controller::Memory) {
            let [current, peak, limit] = match version {
                Version::V1 => [
                    "memory.usage_in_bytes",
                    "memory.max_usage_in_bytes",
                    "memory.limit_in_bytes",
                ],
                Version::V2 => ["memory.current", "memory.peak", "memory.max"],
            };
            usage.memory = number(&path, current);
            usage.memory_peak = number(&path, peak);
            usage.memory_limit = number(&path, limit);
            usage.oom_kills = match version {
                Version::V1 => self.oom_kills_v1(),
                Version::V2 => {
                    let events = std::fs::read_to_string(path.join("memory.events")).ok();
                    events.and_then(|text| keyed_value(&text, "oom_kill"))
                }
            };
        }
        if let Some((path, _)) = self.limited_group(Controller::Pids) {
            usage.pids = number(&path, "pids.current");
            usage.pids_limit = number(&path, "pids.max");
        }
        usage
    }

    /// v1 counts a kill at the leaf of the run alone: those of leaves that are gone, and of those that there are. Unknown
    /// where an earlier daemon has removed leaves.
    fn oom_kills_v1(&self) -> Option<u64> {
        let of_removed = self.runs.removed_oom_kills()?;
        let leaves = self.runs.memory_v1.as_ref()?.children().ok()?;
        let kills = leaves.iter().filter_map(|run| self.runs.oom_kills_v1(run));
        Some(of_removed + kills.sum::<u64>())
    }
}

/// The number in a file; `None` also for `max`.
fn number(group: &Path, file: &str) -> Option<u64> {
    single_value(&std::fs::read_to_string(group.join(file)).ok()?)
}
