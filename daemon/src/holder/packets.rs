//! Packets on tokio: a SOCK_SEQPACKET socket of the holder protocol that waits without a thread.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use lodge_holder::protocol::{self, MAX_PACKET, PacketError};
use lodge_kernel::sys::packet::Wait;
use nix::errno::Errno;
use prost::Message;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// One socket. Sending and receiving may go on at the same time.
#[derive(Debug)]
pub(super) struct Packets(AsyncFd<OwnedFd>);

impl Packets {
    /// Takes a socket over; to be called within the runtime.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        crate::reactor::register(socket, Interest::READABLE | Interest::WRITABLE).map(Self)
    }

    /// Sends one message; waits while the other end's queue is full.
    pub(super) async fn send<M: Message>(
        &self,
        message: &M,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), PacketError> {
        loop {
            // Tried first: the queue is almost never full, and readiness costs a turn of the reactor.
            match protocol::send(self.0.get_ref().as_fd(), message, fds, Wait::No) {
                Err(PacketError::Socket(Errno::EAGAIN)) => {}
                done => return done,
            }
            let mut ready = self.0.writable().await.map_err(|_| PacketError::Closed)?;
            ready.clear_ready();
        }
    }

    /// Receives one message.
    pub(super) async fn receive<M: Message + Default>(
        &self,
    ) -> Result<(M, Vec<OwnedFd>), PacketError> {
        let mut buffer = vec![0; MAX_PACKET];
        self.receive_into(&mut buffer).await
    }

    /// Like [`Self::receive`], with a buffer of [`MAX_PACKET`] to use again.
    pub(super) async fn receive_into<M: Message + Default>(
        &self,
        buffer: &mut [u8],
    ) -> Result<(M, Vec<OwnedFd>), PacketError> {
        loop {
            let mut ready = self.0.readable().await.map_err(|_| PacketError::Closed)?;
            match protocol::receive(self.0.get_ref().as_fd(), buffer, Wait::No) {
                Err(PacketError::Socket(Errno::EAGAIN)) => ready.clear_ready(),
                done => return done,
            }
        }
    }
}
