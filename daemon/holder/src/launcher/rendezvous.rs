//! What the launcher, the intermediate process and the new PID 1 say to each other while a sandbox is made: one byte with
//! a few more, over a socket pair of their own.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use lodge_kernel::sys::packet::{self, Wait};
use lodge_proto::holder::StepFailure;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use prost::Message as _;

use crate::protocol::StepError;

/// How long a launch may take between two messages, in milliseconds. It takes about ten; a host under heavy load needs some more.
const PATIENCE_MS: u16 = 20_000;

/// Longest message: a step failure with a path in it.
const MAX_MESSAGE: usize = 8 * 1024;

/// A message.
#[derive(Debug)]
pub(crate) enum Said {
    /// Intermediate: the namespaces are made, the id maps are wanted.
    Unshared,
    /// Launcher: the maps are written; the idmapped mounts are these (lowers, uppermost first, then the writable one).
    Mapped(Vec<OwnedFd>),
    /// Intermediate: PID 1 is this process.
    Forked(i32),
    /// PID 1: the sandbox is made.
    Ready,
    /// Intermediate or PID 1: a step failed.
    Failed(StepFailure),
}

/// One end.
#[derive(Debug)]
pub(crate) struct End(OwnedFd);

impl AsFd for End {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for End {
    fn from(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

/// Makes both ends.
pub(crate) fn pair() -> nix::Result<(End, End)> {
    let (a, b) = socketpair(
        AddressFamily::Unix,
        SockType::SeqPacket,
        None,
        SockFlag::SOCK_CLOEXEC,
    )?;
    Ok((End(a), End(b)))
}

impl End {
    /// Says something.
    pub(crate) fn say(&self, message: &Said) -> nix::Result<()> {
        let (tag, body, fds): (u8, Vec<u8>, Vec<BorrowedFd<'_>>) = match message {
            Said::Unshared => (b'u', Vec::new(), Vec::new()),
            Said::Mapped(mounts) => (b'm', Vec::new(), mounts.iter().map(|m| m.as_fd()).collect()),
            Said::Forked(pid) => (b'p', pid.to_ne_bytes().to_vec(), Vec::new()),
            Said::Ready => (b'r', Vec::new(), Vec::new()),
            Said::Failed(failure) => (b'f', failure.encode_to_vec(), Vec::new()),
        };
        let mut bytes = vec![tag];
        bytes.extend(body);
        packet::send(self.0.as_fd(), &bytes, &fds, Wait::Yes)
    }

    /// Says that a step failed; there is nobody else to tell if that fails too.
    pub(crate) fn fail(&self, error: StepError) {
        let _ = self.say(&Said::Failed(error.into()));
    }

    /// Waits for a message: ETIMEDOUT after [`PATIENCE_MS`], ECONNRESET if all other ends are closed.
    pub(crate) fn hear(&self) -> nix::Result<Said> {
        let mut ready = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        if poll(&mut ready, PollTimeout::from(PATIENCE_MS))? == 0 {
            return Err(Errno::ETIMEDOUT);
        }
        let mut buffer = [0; MAX_MESSAGE];
        let (length, fds) = packet::receive(self.0.as_fd(), &mut buffer, Wait::Yes)?;
        let (tag, body) = buffer[..length].split_first().ok_or(Errno::ECONNRESET)?;
        match tag {
            b'u' => Ok(Said::Unshared),
            b'm' => Ok(Said::Mapped(fds)),
            b'p' => body
                .try_into()
                .map(|pid| Said::Forked(i32::from_ne_bytes(pid)))
                .map_err(|_| Errno::EBADMSG),
            b'r' => Ok(Said::Ready),
            b'f' => StepFailure::decode(body)
                .map(Said::Failed)
                .map_err(|_| Errno::EBADMSG),
            _ => Err(Errno::EBADMSG),
        }
    }
}
