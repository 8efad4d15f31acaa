//! Descriptor tables: closing ranges, placing descriptors, ioctl sizes.

use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use nix::errno::Errno;

use super::check;

/// Closes every descriptor from `first` up. The owners of such descriptors must have been forgotten or be gone: this is for
/// a forked child that keeps only a few, low ones.
///
/// # Errors
/// The kernel's.
pub fn close_from(first: u32) -> nix::Result<()> {
    // SAFETY: plain integers. Closing descriptors that Rust objects own is not memory-unsafe, and the caller (a forked child about to
    // exec, or the holder after its set-up) has forgotten those objects.
    let ret = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
    check(ret).map(drop)
}

/// Makes `target` a duplicate of `fd`, closing what `target` was; the duplicate survives an exec.
///
/// # Errors
/// The kernel's.
pub fn place(fd: BorrowedFd<'_>, target: RawFd) -> nix::Result<()> {
    if fd.as_raw_fd() == target {
        // dup2 onto itself would keep CLOEXEC.
        return nix::fcntl::fcntl(
            fd,
            nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()),
        )
        .map(drop);
    }
    // SAFETY: plain integers; `fd` is open for the duration of the call.
    let ret = unsafe { libc::dup2(fd.as_raw_fd(), target) };
    Errno::result(ret).map(drop)
}

/// Like [`place`], and the duplicate is closed by an exec. `fd` must not be `target`.
///
/// # Errors
/// The kernel's; EINVAL if both are the same.
pub fn place_cloexec(fd: BorrowedFd<'_>, target: RawFd) -> nix::Result<()> {
    // SAFETY: plain integers; `fd` is open for the duration of the call.
    let ret = unsafe { libc::dup3(fd.as_raw_fd(), target, libc::O_CLOEXEC) };
    Errno::result(ret).map(drop)
}

/// Takes over descriptor `fd`, which this process got by inheritance (a number agreed with the parent).
///
/// # Errors
/// EBADF if it is not open.
pub fn inherit(fd: RawFd) -> nix::Result<OwnedFd> {
    // SAFETY: F_GETFD takes no pointer.
    Errno::result(unsafe { libc::fcntl(fd, libc::F_GETFD) })?;
    // SAFETY: the descriptor is open (checked above) and, by the agreement with the parent, nothing else in this process owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Bytes that can be read from a pipe or socket now (FIONREAD).
///
/// # Errors
/// The kernel's.
pub fn readable_bytes(fd: BorrowedFd<'_>) -> nix::Result<usize> {
    let mut count: libc::c_int = 0;
    // SAFETY: FIONREAD writes one int to the pointer, which is valid for the call.
    Errno::result(unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &raw mut count) })?;
    Ok(usize::try_from(count).unwrap_or(0))
}
