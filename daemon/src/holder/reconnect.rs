//! A holder that an earlier daemon left: connect, greet, and take over what it knows of its runs.

use std::collections::HashMap;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::time::Duration;

use lodge_holder::protocol::{Fds, PacketError, VERSION};
use lodge_kernel::sys::pidfd;
use lodge_proto::holder::{
    FromHolder, Hello, HelloReply, RunState, ToHolder, from_holder, to_holder,
};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::client::{Holder, RunEnd, RunWatch};
use super::error::HolderError;
use super::packets::Packets;

/// How long a holder may take to greet. It answers in microseconds; this is for one that is broken or a host that is very busy.
/// Whoever asks tries again.
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs that a holder may name: it knows no more at once.
const MAX_RUNS: u32 = 1024;

/// Descriptors that a holder keeps for one run: two pipes, two spools, the secrets. More would only use up ours.
const MAX_KEPT: usize = 5;

/// A run that a holder told of.
#[derive(Debug)]
pub struct KnownRun {
    /// What the holder says of it. The id is only text until it is compared with the daemon's own records.
    pub state: RunState,
    /// What was kept for it.
    pub fds: Fds,
    /// Its end, to come or come already.
    pub watch: RunWatch,
}

impl Holder {
    /// Connects to the holder that listens at `socket`; `pid` is the process in the sandbox's holder group.
    ///
    /// # Errors
    /// [`HolderError::Gone`] if the process is gone; [`HolderError::Protocol`] if it speaks another version; anything
    /// else says that the process may well live, and its runs with it.
    pub async fn reconnect(pid: i32, path: &Path) -> Result<(Self, Vec<KnownRun>), HolderError> {
        let pidfd = pidfd::open(pid).map_err(|errno| match errno {
            Errno::ESRCH => HolderError::Gone,
            other => HolderError::os("open the holder")(other),
        })?;
        let packets =
            Packets::new(dial(path)?).map_err(HolderError::os("watch the holder's connection"))?;
        let told = timeout(PATIENCE, greet(&packets))
            .await
            .map_err(|_| HolderError::Silent)??;
        let mut watched = HashMap::new();
        let mut known = Vec::new();
        for (state, fds) in told {
            let (tell, watch) = oneshot::channel();
            match state.exited.clone() {
                Some(exited) => drop(tell.send(RunEnd::Exited(exited))),
                None => drop(watched.insert(state.run_id.clone(), tell)),
            }
            known.push((state, fds, watch));
        }
        let holder = Self::new(packets, pid, pidfd, watched)?;
        let known = known.into_iter().map(|(state, fds, told)| KnownRun {
            watch: holder.watch(state.run_id.clone(), told),
            state,
            fds,
        });
        let known = known.collect();
        Ok((holder, known))
    }
}

fn dial(path: &Path) -> Result<OwnedFd, HolderError> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let connection = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
        .map_err(HolderError::os("make a socket"))?;
    let address = UnixAddr::new(path).map_err(HolderError::os("name the holder's socket"))?;
    connect(connection.as_raw_fd(), &address).map_err(HolderError::os("connect to the holder"))?;
    Ok(connection)
}

/// Says hello and hears of every run.
async fn greet(packets: &Packets) -> Result<Vec<(RunState, Fds)>, HolderError> {
    let hello = ToHolder {
        message: Some(to_holder::Message::Hello(Hello { protocol: VERSION })),
        fds: Vec::new(),
    };
    packets.send(&hello, &[]).await?;
    let mut left = hear_reply(packets).await?;
    let mut runs = Vec::new();
    while left > 0 {
        let (message, fds) = packets.receive::<FromHolder>().await?;
        if let Some(from_holder::Message::RunState(state)) = message.message {
            if fds.len() > MAX_KEPT {
                return Err(HolderError::Packet(PacketError::Descriptors {
                    roles: MAX_KEPT,
                    fds: fds.len(),
                }));
            }
            runs.push((state, Fds::pair(&message.fds, fds)?));
            left -= 1;
        }
    }
    Ok(runs)
}

/// The number of runs that the holder will introduce.
async fn hear_reply(packets: &Packets) -> Result<u32, HolderError> {
    loop {
        // The ends of runs may come first: they are in the states, too.
        let (message, _) = packets.receive::<FromHolder>().await?;
        if let Some(from_holder::Message::Hello(HelloReply { protocol, runs })) = message.message {
            return if protocol == VERSION {
                Ok(runs.min(MAX_RUNS))
            } else {
                Err(HolderError::Protocol(protocol))
            };
        }
    }
}
