//! pidfd_open(2) and pidfd_send_signal(2): processes named so that a reused pid cannot be meant.

use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::sys::signal::Signal;

use super::check;

/// Opens a pidfd. The caller must know that `pid` still is the process it means: a child that it has not reaped is.
///
/// # Errors
/// ESRCH if there is no such process.
pub fn open(pid: i32) -> nix::Result<OwnedFd> {
    // SAFETY: integers only.
    let ret = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = i32::try_from(check(ret)?).map_err(|_| Errno::EOVERFLOW)?;
    // SAFETY: the kernel has just returned this descriptor; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends a signal to the process of a pidfd.
///
/// # Errors
/// ESRCH if it has been reaped.
pub fn send_signal(pidfd: BorrowedFd<'_>, signal: Signal) -> nix::Result<()> {
    // SAFETY: integers, and a null siginfo, which makes it like kill(2).
    let ret = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal as i32,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    check(ret).map(drop)
}
