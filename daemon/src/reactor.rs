//! Handing a descriptor to the runtime's reactor, in one place.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a non-blocking descriptor that the caller gives away; to be called within the runtime.
///
/// # Errors
/// Where the kernel or the runtime takes no more.
#[expect(
    deprecated,
    reason = "sound for an `OwnedFd`, whose number cannot change or be closed while it is registered; the successor is an unsafe function"
)]
pub fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, interest)
}
