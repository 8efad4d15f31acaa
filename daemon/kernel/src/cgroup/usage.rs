//! What a run has used, read from the kernel's own counters. A figure that cannot be had is `None`, never a guess.

use std::time::Duration;

/// The counters of one run's leaf.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time of all its processes, in user and kernel mode.
    pub cpu_time: Option<Duration>,
    /// The highest memory charge in bytes, page cache included; `None` where no memory controller counts the run.
    pub peak_memory: Option<u64>,
    /// How many of its processes the kernel killed for want of memory.
    pub oom_kills: Option<u64>,
}

/// The value of `key` in a flat keyed file such as `cpu.stat`, `memory.events` or `memory.oom_control`.
pub(super) fn keyed_value(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        (name == key).then(|| value.trim().parse().ok())?
    })
}

/// The value of a file that holds one number.
pub(super) fn single_value(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}
