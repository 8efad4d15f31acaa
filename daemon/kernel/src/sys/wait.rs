//! waitpid(2) with the status as the kernel gives it: nothing is decoded, so nothing is lost.

use nix::errno::Errno;

/// A child that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Its pid.
    pub pid: i32,
    /// Its wait status, raw.
    pub status: i32,
}

/// Reaps one child that has ended, if there is one; never blocks. `None` if none has, or there are no children.
pub fn reap() -> Option<Ended> {
    loop {
        let mut status = 0;
        // SAFETY: `status` is valid for the call; WNOHANG makes it return at once.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
        match pid {
            1.. => return Some(Ended { pid, status }),
            0 => return None,
            _ if Errno::last() == Errno::EINTR => {}
            _ => return None,
        }
    }
}
