//! The ioctls of ext4.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::errno::Errno;

/// `_IOW('f', 16, __u64)`
const EXT4_IOC_RESIZE_FS: libc::Ioctl = 0x4008_6610;

/// Gives a mounted ext4 this many blocks. `dir` is a directory of it, open for reading.
pub(crate) fn resize(dir: BorrowedFd<'_>, blocks: u64) -> nix::Result<()> {
    // SAFETY: EXT4_IOC_RESIZE_FS reads one u64, which lives until the call returns.
    Errno::result(unsafe { libc::ioctl(dir.as_raw_fd(), EXT4_IOC_RESIZE_FS, &raw const blocks) })
        .map(drop)
}
