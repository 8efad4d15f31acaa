//! Network interfaces of this network namespace, through the classic ioctls.

use std::os::fd::AsRawFd as _;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// Brings the loopback interface up; the kernel then gives it its addresses.
///
/// # Errors
/// The kernel's; EPERM without CAP_NET_ADMIN over this network namespace.
pub fn loopback_up() -> nix::Result<()> {
    let control = socket(
        AddressFamily::Inet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    // SAFETY: an all-zero ifreq is valid: a name of length zero and a union of integers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    #[allow(
        clippy::cast_possible_truncation,
        reason = "IFF_UP and IFF_RUNNING are below 2^15"
    )]
    let flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    request.ifr_ifru.ifru_flags = flags;
    // SAFETY: SIOCSIFFLAGS reads one ifreq, which lives until the call returns.
    Errno::result(unsafe {
        libc::ioctl(control.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request)
    })
    .map(drop)
}
