//! Packets with file descriptors over SOCK_SEQPACKET unix sockets.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use nix::errno::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Descriptors that one packet may carry: the kernel's own bound (SCM_MAX_FD).
pub const MAX_FDS: usize = 253;

/// Room for [`MAX_FDS`] descriptors.
const CONTROL: usize = rustix::cmsg_space!(ScmRights(MAX_FDS));

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
/// EPIPE if the other end is gone, EAGAIN if its queue is full and `wait` is `No`, EMSGSIZE if the packet is too large, E2BIG if it
/// has more than [`MAX_FDS`] descriptors.
pub fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    wait: Wait,
) -> nix::Result<()> {
    let mut space = [MaybeUninit::uninit(); CONTROL];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::E2BIG);
    }
    let mut flags = SendFlags::NOSIGNAL;
    flags.set(SendFlags::DONTWAIT, wait == Wait::No);
    loop {
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags) {
            Err(rustix::io::Errno::INTR) => {}
            other => return other.map(drop).map_err(errno),
        }
    }
}

/// Receives one packet into `buffer`; returns its length and its descriptors (close-on-exec). A length of zero is the end.
///
/// # Errors
/// EMSGSIZE if the packet was longer than `buffer`, or if this process had no room for its descriptors; what came with it is
/// closed. EAGAIN if there is none and `wait` is `No`.
pub fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    wait: Wait,
) -> nix::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); CONTROL];
    let mut flags = RecvFlags::CMSG_CLOEXEC;
    flags.set(RecvFlags::DONTWAIT, wait == Wait::No);
    loop {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let message = match recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other.map_err(errno)?,
        };
        // Owned at once: whatever is returned below, none is left open.
        let fds: Vec<OwnedFd> = control
            .drain()
            .filter_map(|item| {
                if let RecvAncillaryMessage::ScmRights(fds) = item {
                    Some(fds)
                } else {
                    None
                }
            })
            .flatten()
            .collect();
        if message
            .flags
            .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
        {
            return Err(Errno::EMSGSIZE);
        }
        return Ok((message.bytes, fds));
    }
}

fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_raw(error.raw_os_error())
}
