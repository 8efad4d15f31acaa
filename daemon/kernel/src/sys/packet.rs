//! Packets with file descriptors over SOCK_SEQPACKET unix sockets.

use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use std::io::{IoSlice, IoSliceMut};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

/// Descriptors that one packet may carry. The kernel's own bound is 253 (SCM_MAX_FD).
pub const MAX_FDS: usize = 64;

/// Whether a call may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Return EAGAIN instead of waiting.
    No,
    /// Wait until the socket is ready.
    Yes,
}

/// Sends one packet. Never raises SIGPIPE.
///
/// # Errors
/// EPIPE if the other end is gone, EAGAIN if its queue is full and `wait` is `No`, EMSGSIZE if the packet is too large.
pub fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    wait: Wait,
) -> nix::Result<()> {
    let raw: Vec<RawFd> = fds.iter().map(|fd| fd.as_raw_fd()).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
    let mut flags = MsgFlags::MSG_NOSIGNAL;
    if wait == Wait::No {
        flags |= MsgFlags::MSG_DONTWAIT;
    }
    loop {
        match sendmsg::<()>(
            socket.as_raw_fd(),
            &[IoSlice::new(bytes)],
            control,
            flags,
            None,
        ) {
            Err(Errno::EINTR) => {}
            other => return other.map(drop),
        }
    }
}

/// Receives one packet into `buffer`; returns its length and its descriptors (close-on-exec). A length of zero is the end.
///
/// # Errors
/// EMSGSIZE if the packet was longer than `buffer` or carried more than [`MAX_FDS`]; what came with it is closed. EAGAIN if there is
/// none and `wait` is `No`.
pub fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    wait: Wait,
) -> nix::Result<(usize, Vec<OwnedFd>)> {
    let mut control = cmsg_space!([RawFd; MAX_FDS]);
    let mut flags = MsgFlags::MSG_CMSG_CLOEXEC;
    if wait == Wait::No {
        flags |= MsgFlags::MSG_DONTWAIT;
    }
    loop {
        let mut slices = [IoSliceMut::new(buffer)];
        let message =
            match recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut control), flags) {
                Err(Errno::EINTR) => continue,
                other => other?,
            };
        let mut fds = Vec::new();
        for item in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(raw) = item {
                // SAFETY: the kernel has just installed these descriptors for this message; nothing else owns them.
                fds.extend(
                    raw.into_iter()
                        .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }),
                );
            }
        }
        if message
            .flags
            .intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC)
        {
            return Err(Errno::EMSGSIZE);
        }
        return Ok((message.bytes, fds));
    }
}
