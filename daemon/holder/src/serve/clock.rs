//! The one clock of the holder: monotonic, so that a wall-clock jump changes no deadline.

use nix::time::{ClockId, clock_gettime};

/// CLOCK_MONOTONIC, in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let now =
        clock_gettime(ClockId::CLOCK_MONOTONIC).expect("CLOCK_MONOTONIC exists on every Linux");
    let seconds = u64::try_from(now.tv_sec()).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec()).unwrap_or(0);
    seconds * 1_000_000_000 + nanos
}
