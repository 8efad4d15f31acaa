//! The connection to the daemon, and what it may ask for.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use lodge_kernel::sys::packet::Wait;
use lodge_proto::holder::{
    FdRole, FromHolder, Frozen, HelloReply, Ping, Pong, SpawnFailed, ToHolder, from_holder,
    to_holder,
};
use nix::errno::Errno;
use nix::poll::PollFlags;

use super::{Holder, clock};
use crate::protocol::{self, Fds, PacketError, Versions};

/// One daemon's connection.
pub(crate) struct Connection {
    socket: OwnedFd,
    /// Its queue was full: wait until it can be written to.
    full: bool,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Connection {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            full: false,
        }
    }

    pub(super) fn interest(&self) -> PollFlags {
        if self.full {
            PollFlags::POLLIN | PollFlags::POLLOUT
        } else {
            PollFlags::POLLIN
        }
    }

    /// The next message; `None` if there is none now.
    pub(super) fn receive(
        &mut self,
        buffer: &mut [u8],
    ) -> Result<Option<(ToHolder, Fds)>, PacketError> {
        match protocol::receive::<ToHolder>(self.as_fd(), buffer, Wait::No) {
            Ok((message, fds)) => {
                let fds = Fds::pair(&message.fds, fds)?;
                Ok(Some((message, fds)))
            }
            Err(PacketError::Socket(Errno::EAGAIN)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends without waiting; `false` if it has to be tried again once the socket can be written to.
    pub(super) fn send(
        &mut self,
        message: from_holder::Message,
        fds: &Fds,
    ) -> Result<bool, PacketError> {
        let message = FromHolder {
            message: Some(message),
            fds: fds.roles(),
        };
        match protocol::send(self.as_fd(), &message, &fds.borrowed(), Wait::No) {
            Ok(()) => {
                self.full = false;
                Ok(true)
            }
            Err(PacketError::Socket(Errno::EAGAIN)) => {
                self.full = true;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

impl Holder {
    /// Does what a message asks. A message without content is of a newer version: ignored.
    pub(super) fn handle(&mut self, message: ToHolder, mut fds: Fds) {
        match message.message {
            Some(to_holder::Message::Hello(_)) => self.greet(),
            Some(to_holder::Message::Spawn(spawn)) => self.spawn(spawn, fds),
            Some(to_holder::Message::Kill(kill)) => {
                self.runs.kill(&kill.run_id, clock::now_ns(), kill.grace_ms);
            }
            Some(to_holder::Message::Forget(forget)) => self.runs.forget(&forget.run_id),
            Some(to_holder::Message::Frozen(Frozen { frozen, at_ns })) => {
                let now = clock::now_ns();
                let at = if at_ns == 0 { now } else { at_ns.min(now) };
                if frozen {
                    self.runs.freeze(at);
                } else {
                    self.runs.thaw(at);
                }
            }
            Some(to_holder::Message::Ping(Ping { number })) => self.answer_ping(number),
            // Its socket is gone from the host: the next daemon finds it at this one.
            Some(to_holder::Message::Listen(_)) => {
                if let Some(listener) = fds.take(FdRole::Listener) {
                    self.listener = listener;
                }
            }
            None => {}
        }
    }

    /// Says that it is there. A daemon whose queue is full hears of it by what is in there.
    fn answer_ping(&mut self, number: u64) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        let pong = from_holder::Message::Pong(Pong { number });
        if connection.send(pong, &Fds::default()).is_err() {
            self.connection = None;
        }
    }

    /// Greets a daemon; the runs that it does not know are introduced by the loop, as its queue has room.
    fn greet(&mut self) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        let reply = HelloReply {
            protocol: Versions::OURS.newest,
            oldest: Versions::OURS.oldest,
            runs: self.runs.meet(),
        };
        // It is the first message on a connection: a queue without room for it belongs to nobody who reads.
        let told = connection.send(from_holder::Message::Hello(reply), &Fds::default());
        if !matches!(told, Ok(true)) {
            self.connection = None;
        }
    }

    fn spawn(&mut self, spawn: lodge_proto::holder::Spawn, fds: Fds) {
        let run_id = spawn.run_id.clone();
        if let Err(failure) =
            self.runs
                .spawn(self.alone, &self.settings, &self.run_tasks, spawn, fds)
        {
            let failed = SpawnFailed {
                run_id,
                failure: Some(failure.into()),
            };
            let Some(connection) = &mut self.connection else {
                return;
            };
            // Answered at once or not at all: a daemon whose queue is full has long stopped reading, and is replaced by the next.
            if !matches!(
                connection.send(from_holder::Message::SpawnFailed(failed), &Fds::default()),
                Ok(true)
            ) {
                self.connection = None;
            }
        }
    }
}

/// Roles that the holder keeps for a run's whole life.
pub(crate) const KEPT: &[FdRole] = &[
    FdRole::StdoutRead,
    FdRole::StderrRead,
    FdRole::StdoutSpool,
    FdRole::StderrSpool,
    FdRole::Secrets,
];
