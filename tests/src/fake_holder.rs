//! A holder that lies: it listens in the place of a sandbox's real one while the daemon is down, and tells the next
//! daemon what the test wants it to hear. The real one lives on, unasked.

use std::fs;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use lodge_proto::holder::{FdRole, FromHolder, HelloReply, RunState, from_holder};
use prost::Message;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown,
    SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, recv, sendmsg, shutdown,
    socket_with,
};

use crate::daemon::Daemon;
use crate::room::Room;

/// Version of the protocol that the liar speaks, unless it is to speak another.
const PROTOCOL: u32 = 1;
/// Longest packet of the protocol, in bytes.
const PACKET_MAX: usize = 64 << 10;
/// Most descriptors of one run.
const FDS_MAX: usize = 8;

/// A run as the liar tells of it, with what is kept for it.
pub type Told = (RunState, Vec<(FdRole, OwnedFd)>);

/// What the liar says when it is greeted.
#[derive(Debug)]
pub enum Story {
    /// Nothing at all.
    Silence,
    /// It knows these runs.
    Runs(Vec<Told>),
    /// It speaks these versions of the protocol (the oldest, which version 1 did not say, and the newest), and knows no run.
    Versions(u32, u32),
    /// It greets, and then says what is no message.
    Garbage,
    /// It greets, and then says more than a packet may have.
    TooLong,
    /// It greets with descriptors that it does not name.
    Descriptors,
}

/// The liar. Dropping it ends its connections and puts the real holder's socket back.
#[derive(Debug)]
pub struct FakeHolder {
    socket: PathBuf,
    aside: PathBuf,
    listener: Arc<OwnedFd>,
    thread: Option<JoinHandle<Vec<OwnedFd>>>,
}

impl FakeHolder {
    /// Takes the place of a sandbox's holder. The daemon must be down.
    pub fn instead_of(room: &Room, daemon: &Daemon, story: Story) -> Result<Self> {
        let socket = socket_of(room, daemon);
        let aside = socket.with_extension("real");
        fs::rename(&socket, &aside).context("put the real socket aside")?;
        let flags = SocketFlags::CLOEXEC;
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind(&listener, &SocketAddrUnix::new(&socket)?)?;
        listen(&listener, 8)?;
        let listener = Arc::new(listener);
        let serving = Arc::clone(&listener);
        let thread = std::thread::spawn(move || serve(&serving, &story));
        Ok(Self {
            socket,
            aside,
            listener,
            thread: Some(thread),
        })
    }
}

/// Where a sandbox's holder listens for the next daemon.
pub fn socket_of(room: &Room, daemon: &Daemon) -> PathBuf {
    let holders = daemon.slot().home().join("run/holders");
    holders.join(format!("{}.sock", room.id()))
}

impl Drop for FakeHolder {
    fn drop(&mut self) {
        // It wakes the thread, whose connections end with it.
        let _ = shutdown(&self.listener, Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = fs::rename(&self.aside, &self.socket);
    }
}

/// Answers whoever connects until the listener is shut; keeps the connections open until then.
fn serve(listener: &OwnedFd, story: &Story) -> Vec<OwnedFd> {
    let mut connections = Vec::new();
    while let Ok(connection) = accept(listener) {
        // A daemon that hangs up in the middle of a lie is what some tests want.
        let _ = tell(&connection, story);
        connections.push(connection);
    }
    connections
}

fn tell(connection: &OwnedFd, story: &Story) -> Result<()> {
    match story {
        Story::Silence => Ok(()),
        Story::Runs(runs) => {
            greet(connection, 0, PROTOCOL, u32::try_from(runs.len())?)?;
            for (state, fds) in runs {
                send(
                    connection,
                    from_holder::Message::RunState(state.clone()),
                    fds,
                )?;
            }
            Ok(())
        }
        Story::Versions(oldest, newest) => greet(connection, *oldest, *newest, 0),
        Story::Garbage => {
            greet(connection, 0, PROTOCOL, 0)?;
            raw(connection, &[0xff; 64])
        }
        Story::TooLong => {
            greet(connection, 0, PROTOCOL, 0)?;
            raw(connection, &vec![0; PACKET_MAX + 1])
        }
        Story::Descriptors => {
            let hello = HelloReply {
                protocol: PROTOCOL,
                runs: 1,
                oldest: 0,
            };
            send(connection, from_holder::Message::Hello(hello), &[])?;
            let mut packet = FromHolder {
                message: Some(from_holder::Message::RunState(RunState::default())),
                fds: Vec::new(),
            };
            packet.fds.push(FdRole::Secrets as i32);
            raw(connection, &packet.encode_to_vec())
        }
    }
}

/// Hears the daemon's greeting and answers it.
fn greet(connection: &OwnedFd, oldest: u32, newest: u32, runs: u32) -> Result<()> {
    let mut hello = vec![0u8; PACKET_MAX];
    recv(connection, &mut hello[..], RecvFlags::empty())?;
    let reply = HelloReply {
        protocol: newest,
        runs,
        oldest,
    };
    send(connection, from_holder::Message::Hello(reply), &[])
}

fn raw(connection: &OwnedFd, bytes: &[u8]) -> Result<()> {
    let mut none = SendAncillaryBuffer::default();
    sendmsg(
        connection,
        &[IoSlice::new(bytes)],
        &mut none,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// Takes the connection of a sandbox's real holder away from its daemon, as only the host's root can: a newer connection replaces
/// the older.
pub fn cut_in(room: &Room, daemon: &Daemon) -> Result<OwnedFd> {
    let connection = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let address = SocketAddrUnix::new(socket_of(room, daemon))?;
    rustix::net::connect(&connection, &address)?;
    Ok(connection)
}

fn send(
    connection: &OwnedFd,
    message: from_holder::Message,
    fds: &[(FdRole, OwnedFd)],
) -> Result<()> {
    let packet = FromHolder {
        message: Some(message),
        fds: fds.iter().map(|(role, _)| *role as i32).collect(),
    };
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(|(_, fd)| fd.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        rights.push(SendAncillaryMessage::ScmRights(&fds));
    }
    let bytes = packet.encode_to_vec();
    sendmsg(
        connection,
        &[IoSlice::new(&bytes)],
        &mut rights,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}
