//! The launcher as a process: the program that it is executed from, and how it is started.
//!
//! Everything here goes by posix_spawn(3), which runs nothing of ours between fork and exec; so it may be called while the
//! daemon has threads.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use lodge_kernel::protection;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::holder::error::HolderError;
use crate::holder::private_copy;

/// What launchers are executed from, kept for the daemon's life, and the limit that they get.
#[derive(Debug)]
pub(super) struct Program {
    copy: OwnedFd,
    /// RLIMIT_NOFILE as it was before the daemon raised its own: what a sandbox's processes inherit comes from here.
    open_files: Rlimit,
}

/// A launcher that was just started.
#[derive(Debug)]
pub(super) struct Spawned {
    pub(super) socket: OwnedFd,
    pub(super) child: Child,
}

impl Program {
    /// Copies this program (into `dir`, if it can) to where no sandbox may open it. To be called before the daemon changes its limits.
    pub(super) fn copy(dir: &Path) -> Result<Self, HolderError> {
        let copy = private_copy::make(dir).map_err(HolderError::os("copy the launcher"))?;
        Ok(Self {
            copy,
            open_files: getrlimit(Resource::Nofile),
        })
    }

    /// Runs `lodged launcher` with its end of the socket as standard input and with an empty environment. It does nothing before it
    /// is asked, so that its limits are in place by then.
    pub(super) fn spawn(&self) -> Result<Spawned, HolderError> {
        let (ours, theirs) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )
        .map_err(HolderError::os("make the launcher's socket"))?;
        let mut child = Command::new(format!("/proc/self/fd/{}", self.copy.as_raw_fd()))
            .arg0("lodged")
            .arg("launcher")
            .env_clear()
            .envs(for_tests())
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            // Its last words, should it ever have any; a holder's standard streams are /dev/null.
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(HolderError::os("start the launcher"))?;
        if let Err(error) = self.limit(&child) {
            let _ = child.kill();
            let _ = child.wait();
            return Err(error);
        }
        Ok(Spawned {
            socket: ours,
            child,
        })
    }

    fn limit(&self, child: &Child) -> Result<(), HolderError> {
        let pid = Pid::from_child(child);
        prlimit(Some(pid), Resource::Nofile, self.open_files)
            .map(drop)
            .map_err(HolderError::os("limit the launcher's descriptors"))
    }
}

/// What a test has switched off. Nothing in a release.
fn for_tests() -> Option<(&'static str, std::ffi::OsString)> {
    if cfg!(feature = "weaken") {
        return std::env::var_os(protection::VARIABLE).map(|asked| (protection::VARIABLE, asked));
    }
    None
}
