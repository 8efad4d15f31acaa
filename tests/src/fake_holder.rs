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

/// Version of the protocol that the daemon speaks.
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
        if let Story::Runs(runs) = story {
            // A daemon that hangs up in the middle of a lie is what some tests want.
            let _ = tell(&connection, runs);
        }
        connections.push(connection);
    }
    connections
}

fn tell(connection: &OwnedFd, runs: &[Told]) -> Result<()> {
    let mut hello = vec![0u8; PACKET_MAX];
    recv(connection, &mut hello[..], RecvFlags::empty())?;
    let reply = HelloReply {
        protocol: PROTOCOL,
        runs: u32::try_from(runs.len())?,
    };
    send(connection, from_holder::Message::Hello(reply), &[])?;
    for (state, fds) in runs {
        send(
            connection,
            from_holder::Message::RunState(state.clone()),
            fds,
        )?;
    }
    Ok(())
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
