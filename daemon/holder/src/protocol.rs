//! Packets between lodged, the launcher and the holder: prost messages over SOCK_SEQPACKET, capped in length, with the
//! descriptors that a list of roles names.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use lodge_kernel::sys::packet::{self, Wait};
use lodge_proto::holder::{FdRole, StepFailure};
use nix::errno::Errno;
use prost::Message;

pub use crate::versions::{Versions, WITH_PING};

/// Longest packet, in bytes. What may be longer (scripts, environments) goes by memfd.
pub const MAX_PACKET: usize = 64 * 1024;

/// Why a packet could not be used.
#[derive(Debug, thiserror::Error)]
pub enum PacketError {
    /// The socket failed.
    #[error("socket")]
    Socket(#[from] Errno),
    /// The other end is gone.
    #[error("the other end closed the connection")]
    Closed,
    /// Not a message of this protocol.
    #[error("malformed message")]
    Malformed(#[from] prost::DecodeError),
    /// Descriptors and roles do not match.
    #[error("message names {roles} descriptors and came with {fds}")]
    Descriptors {
        /// Roles named.
        roles: usize,
        /// Descriptors received.
        fds: usize,
    },
    /// Longer than [`MAX_PACKET`].
    #[error("message of {0} bytes is longer than the protocol allows")]
    TooLong(usize),
}

/// Sends a message with descriptors; the message lists their roles itself.
///
/// # Errors
/// See [`PacketError`]; `Socket(EAGAIN)` where it would have to wait and may not.
pub fn send<M: Message>(
    socket: BorrowedFd<'_>,
    message: &M,
    fds: &[BorrowedFd<'_>],
    wait: Wait,
) -> Result<(), PacketError> {
    let bytes = message.encode_to_vec();
    if bytes.len() > MAX_PACKET {
        return Err(PacketError::TooLong(bytes.len()));
    }
    packet::send(socket, &bytes, fds, wait).map_err(|errno| match errno {
        Errno::EPIPE | Errno::ECONNRESET => PacketError::Closed,
        other => PacketError::Socket(other),
    })
}

/// Receives a message with its descriptors, in the order in which they were sent. `buffer` is [`MAX_PACKET`] long.
///
/// # Errors
/// See [`PacketError`].
pub fn receive<M: Message + Default>(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    wait: Wait,
) -> Result<(M, Vec<OwnedFd>), PacketError> {
    match packet::receive(socket, buffer, wait) {
        Ok((0, _)) | Err(Errno::ECONNRESET) => Err(PacketError::Closed),
        Ok((length, fds)) => Ok((M::decode(&buffer[..length])?, fds)),
        Err(errno) => Err(errno.into()),
    }
}

/// Descriptors by what they are.
#[derive(Debug, Default)]
pub struct Fds(Vec<(FdRole, OwnedFd)>);

impl Fds {
    /// Pairs a message's roles with the descriptors that came along.
    ///
    /// # Errors
    /// Where their numbers differ. A role that this version does not know is kept as unspecified, and closed with the rest.
    pub fn pair(roles: &[i32], fds: Vec<OwnedFd>) -> Result<Self, PacketError> {
        if roles.len() != fds.len() {
            return Err(PacketError::Descriptors {
                roles: roles.len(),
                fds: fds.len(),
            });
        }
        let role = |r: &i32| FdRole::try_from(*r).unwrap_or_default();
        Ok(Self(roles.iter().map(role).zip(fds).collect()))
    }

    /// Adds one.
    pub fn push(&mut self, role: FdRole, fd: OwnedFd) {
        self.0.push((role, fd));
    }

    /// Takes the first of a role.
    pub fn take(&mut self, role: FdRole) -> Option<OwnedFd> {
        let at = self.0.iter().position(|(r, _)| *r == role)?;
        Some(self.0.remove(at).1)
    }

    /// Takes all of a role, in order.
    pub fn take_all(&mut self, role: FdRole) -> Vec<OwnedFd> {
        let (wanted, rest) = std::mem::take(&mut self.0)
            .into_iter()
            .partition(|(r, _)| *r == role);
        self.0 = rest;
        let wanted: Vec<(FdRole, OwnedFd)> = wanted;
        wanted.into_iter().map(|(_, fd)| fd).collect()
    }

    /// The first of a role, borrowed.
    pub fn get(&self, role: FdRole) -> Option<BorrowedFd<'_>> {
        self.0
            .iter()
            .find(|(r, _)| *r == role)
            .map(|(_, fd)| fd.as_fd())
    }

    /// Roles in order, for a message's `fds`.
    pub fn roles(&self) -> Vec<i32> {
        self.0.iter().map(|(role, _)| *role as i32).collect()
    }

    /// Descriptors in order, borrowed.
    pub fn borrowed(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().map(|(_, fd)| fd.as_fd()).collect()
    }
}

/// A failed step: its name, what it worked on, and the kernel's word.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("step {step} failed on {object}: {errno}")]
pub struct StepError {
    /// Name in the table of steps.
    pub step: &'static str,
    /// What it worked on.
    pub object: String,
    /// The kernel's error.
    pub errno: Errno,
}

impl From<StepError> for StepFailure {
    fn from(error: StepError) -> Self {
        Self {
            step: error.step.to_owned(),
            object: error.object,
            errno: error.errno as i32,
        }
    }
}

/// What failed within a step; the table of steps adds the step's name.
#[derive(Debug)]
pub(crate) struct Cause {
    pub(crate) object: String,
    pub(crate) errno: Errno,
}

/// Names the object of a failed call: `call().map_err(on("/dev/null"))`.
pub(crate) fn on<E: Into<Errno>>(object: impl Into<String>) -> impl FnOnce(E) -> Cause {
    move |errno| Cause {
        object: object.into(),
        errno: errno.into(),
    }
}

/// The error number in an I/O error; EIO where it has none.
pub(crate) fn errno_of(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// Joins v1 groups, by their `tasks`: a write to `cgroup.procs` would wait for a grace period.
pub(crate) fn join_v1_groups<'a>(
    tasks: impl IntoIterator<Item = &'a OwnedFd>,
) -> Result<(), Cause> {
    for fd in tasks {
        nix::unistd::write(fd, b"0").map_err(on("v1 tasks"))?;
    }
    Ok(())
}
