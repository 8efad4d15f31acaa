//! Want of memory on cgroup v1, where the kernel ends one process and tells; on v2 it ends the whole run by itself.

use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::fcntl::OFlag;
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::error::{Error, Result};
use super::run::RunLeaf;
use super::sandbox::SandboxGroup;

impl SandboxGroup {
    /// An eventfd, non-blocking, that can be read whenever the kernel is about to end a process of a run for want of memory, and
    /// once more when the groups of the sandbox are gone. `None` where memory is not on v1.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn oom_events(&self) -> Result<Option<OwnedFd>> {
        let Some(memory) = &self.runs.memory_v1 else {
            return Ok(None);
        };
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let events = EventFd::from_flags(flags).map_err(|source| Error::File {
            action: "watch",
            path: memory.path().into(),
            source,
        })?;
        let control = memory.open_at("memory.oom_control", OFlag::O_RDONLY)?;
        let order = format!("{} {}", events.as_raw_fd(), control.as_raw_fd());
        memory.write("cgroup.event_control", &order)?;
        Ok(Some(events.into()))
    }

    /// Whether its groups are still there.
    #[must_use]
    pub fn has_memory_v1(&self) -> bool {
        let memory = self.runs.memory_v1.as_ref();
        memory.is_some_and(|memory| memory.read("memory.oom_control").is_ok())
    }
}

impl RunLeaf {
    /// Kills what is left of the run if the kernel has ended a process of it for want of memory, as v2 does by itself.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn end_if_out_of_memory(&self) -> Result<()> {
        match self.oom_kills_v1() {
            Some(kills) if kills > 0 => self.kill(),
            _ => Ok(()),
        }
    }
}
