//! Removing a sandbox's groups: waits for the last process, then takes the directories from the bottom up.
//!
//! Kills nothing: the caller does that first.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::directory::Directory;
use super::error::{Error, Result};
use super::parent::Trees;
use super::usage::keyed_value;

/// How long killed processes may take to go. Hundreds need about 0.3 s; one stuck in the kernel may never go.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Groups below a sandbox are two levels deep (`runs/<run>`); deeper ones are not ours.
const DEPTH: u32 = 3;

/// Removes every group of `sandbox`, in v1 first: the v2 group is the one that lists it. Processes that are still there
/// get `patience` to go.
pub(super) fn remove(trees: &Trees, sandbox: &str, patience: Duration) -> Result<()> {
    match trees.v2.child(sandbox) {
        Ok(group) => wait_until_empty(&group, patience)?,
        Err(error) if error.errno() == Some(Errno::ENOENT) => {}
        Err(error) => return Err(error),
    }
    let v1 = trees.v1.iter().map(|(_, parent)| parent);
    v1.chain([&trees.v2])
        .try_for_each(|parent| remove_tree(parent, sandbox, DEPTH))
}

/// The kernel marks `cgroup.events` as changed (POLLPRI) when the last process of a subtree has gone. A process leaves
/// its v1 groups in the same moment, so no second wait is needed.
fn wait_until_empty(group: &Directory, patience: Duration) -> Result<()> {
    let deadline = Instant::now() + patience;
    let events = group.open_at("cgroup.events", OFlag::O_RDONLY)?;
    // Reading afresh, by a second descriptor, must come after `events` was opened: a change in between wakes the poll.
    while keyed_value(&group.read("cgroup.events")?, "populated") == Some(1) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::Populated {
                path: group.path().into(),
            });
        }
        let mut changed = [PollFd::new(events.as_fd(), PollFlags::POLLPRI)];
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
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
    Ok(())
}

fn remove_tree(parent: &Directory, name: &str, depth: u32) -> Result<()> {
    let group = match parent.child(name) {
        Err(error) if error.errno() == Some(Errno::ENOENT) => return Ok(()),
        opened => opened?,
    };
    if depth > 0 {
        for child in group.children()? {
            remove_tree(&group, &child, depth - 1)?;
        }
    }
    parent.remove_child(name)
}
