//! Stopping: the end of every process of a sandbox. Its files stay.

use lodge_kernel::cgroup::SandboxGroup;
use nix::errno::Errno;

use super::id::SandboxId;
use super::live::Live;
use super::platform::Platform;
use super::runtime::Cause;
use super::start::remove_socket;
use crate::error::Result;
use crate::fault;

/// Ends every process and removes the cgroup and the socket. Blocks until the kernel says that they are gone.
pub(super) fn end_processes(platform: &Platform, live: &Live, cause: Cause) -> Result<()> {
    if cause != Cause::HolderDied {
        live.holder.mark_stopping();
    }
    if cause == Cause::Deleted {
        live.disk.keep_until_removed();
    }
    end_group(&live.cgroup)?;
    remove_socket(platform, &live.id);
    Ok(())
}

/// Ends what this daemon never knew: a damaged sandbox may have processes that an earlier one started. Blocks.
pub(super) fn end_leftovers(platform: &Platform, id: &SandboxId) -> Result<()> {
    match existing_group(platform, id)? {
        Some(group) => end_group(&group)?,
        // A start that was cut off may have left some of them, and nothing else would take those away before the next daemon.
        None => platform.cgroup_parent.discard(id.as_str())?,
    }
    remove_socket(platform, id);
    Ok(())
}

/// The cgroup that an earlier daemon made for a sandbox, if it is there and whole.
pub(super) fn existing_group(platform: &Platform, id: &SandboxId) -> Result<Option<SandboxGroup>> {
    match platform.cgroup_parent.open(id.as_str()) {
        Ok(group) => Ok(Some(group)),
        Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Kills what is in a sandbox's cgroup, frozen or not, and removes it.
pub(super) fn end_group(group: &SandboxGroup) -> Result<()> {
    fault::around("stop.end group", || {
        group.kill()?;
        Ok(group.remove()?)
    })
}
