//! Waiting for what `cgroup.events` of a v2 group says.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::directory::Directory;
use super::error::{Error, Result};
use super::usage::keyed_value;

const EVENTS: &str = "cgroup.events";

/// Waits until `key` has `value`; says whether it has within `patience`. The kernel marks the file as changed (POLLPRI)
/// each time.
pub(super) fn wait_for(
    group: &Directory,
    key: &str,
    value: u64,
    patience: Duration,
) -> Result<bool> {
    let deadline = Instant::now() + patience;
    let events = group.open_at(EVENTS, OFlag::O_RDONLY)?;
    // Reading afresh, by a second descriptor, must come after `events` was opened: a change in between wakes the poll.
    while keyed_value(&group.read(EVENTS)?, key) != Some(value) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let mut changed = [PollFd::new(events.as_fd(), PollFlags::POLLPRI)];
        // Rounded up, so that the last wait is not a spin.
        let ms = left.as_millis() + 1;
        let timeout = PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX);
        match poll(&mut changed, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(source) => {
                return Err(Error::File {
                    action: "poll",
                    path: group.path().into(),
                    source,
                });
            }
        }
        // Reading through the polled descriptor is what takes the mark away.
        nix::sys::uio::pread(&events, &mut [0; 64], 0).ok();
    }
    Ok(true)
}
