//! Stopping: the end of every process of a sandbox. Its files stay.

use lodge_kernel::cgroup::SandboxGroup;

use super::live::Live;
use super::platform::Platform;
use super::start::remove_socket;
use crate::error::Result;
use crate::store::Record;

/// Who decided that a sandbox's processes end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// A caller: live runs end as SANDBOX_STOPPED.
    Asked,
    /// Its holder died: live runs are LOST.
    HolderDied,
}

/// Ends every process and removes the cgroup and the socket. Blocks until the kernel says that they are gone.
pub(super) fn end_processes(
    platform: &Platform,
    record: &Record,
    live: &Live,
    cause: Cause,
) -> Result<()> {
    if cause == Cause::Asked {
        live.holder.mark_stopping();
    }
    end_group(&live.cgroup)?;
    remove_socket(platform, record);
    Ok(())
}

/// Kills what is in a sandbox's cgroup, frozen or not, and removes it.
pub(super) fn end_group(group: &SandboxGroup) -> Result<()> {
    group.kill()?;
    Ok(group.remove()?)
}
