//! A holder that is there already: connect, greet, and take over what it knows of its runs.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::time::Duration;

use lodge_holder::protocol::{Fds, PacketError, Versions};
use lodge_kernel::sys::pidfd;
use lodge_proto::holder::{
    FromHolder, Hello, HelloReply, RunState, ToHolder, from_holder, to_holder,
};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use tokio::time::timeout;

use super::client::{Holder, RunWatch};
use super::connection::Link;
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

/// What a holder says to a new connection.
pub(super) struct Greeting {
    pub(super) packets: Packets,
    /// The version that both speak.
    pub(super) version: u32,
    /// Its runs, with what it keeps for them.
    pub(super) runs: Vec<(RunState, Fds)>,
}

impl Holder {
    /// Connects to the holder that listens at `socket`; `pid` is the process in the sandbox's holder group.
    ///
    /// # Errors
    /// [`HolderError::Gone`] if the process is gone; [`HolderError::Protocol`] if it speaks no version that this daemon
    /// speaks; anything else says that the process may well live, and its runs with it.
    pub async fn reconnect(pid: i32, path: &Path) -> Result<(Self, Vec<KnownRun>), HolderError> {
        let pidfd = pidfd::open(pid).map_err(|errno| match errno {
            Errno::ESRCH => HolderError::Gone,
            other => HolderError::os("open the holder")(other),
        })?;
        let Greeting {
            packets,
            version,
            runs,
        } = greet(path).await?;
        let link = Link::new(packets, version);
        let holder = Self::new(link.clone(), path, pid, pidfd)?;
        let known = runs.into_iter().map(|(state, fds)| KnownRun {
            watch: match state.exited.clone() {
                Some(exited) => holder.ended(exited),
                None => holder.watch(state.run_id.clone(), &link),
            },
            state,
            fds,
        });
        let known = known.collect();
        // Not before all are watched: an end that comes first would be told to nobody.
        holder.listen();
        Ok((holder, known))
    }
}

/// Connects to a holder and hears of its runs.
pub(super) async fn greet(path: &Path) -> Result<Greeting, HolderError> {
    let packets =
        Packets::new(dial(path)?).map_err(HolderError::os("watch the holder's connection"))?;
    let hear = async {
        say_hello(&packets).await?;
        let (version, count) = hear_reply(&packets).await?;
        Ok::<_, HolderError>((version, hear_runs(&packets, count).await?))
    };
    let (version, runs) = timeout(PATIENCE, hear)
        .await
        .map_err(|_| HolderError::Silent)??;
    Ok(Greeting {
        packets,
        version,
        runs,
    })
}

fn dial(path: &Path) -> Result<OwnedFd, HolderError> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let connection = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
        .map_err(HolderError::os("make a socket"))?;
    let address = UnixAddr::new(path).map_err(HolderError::os("name the holder's socket"))?;
    connect(connection.as_raw_fd(), &address).map_err(HolderError::os("connect to the holder"))?;
    Ok(connection)
}

async fn say_hello(packets: &Packets) -> Result<(), HolderError> {
    let ours = ours();
    let hello = ToHolder {
        message: Some(to_holder::Message::Hello(Hello {
            protocol: ours.newest,
            oldest: ours.oldest,
        })),
        fds: Vec::new(),
    };
    Ok(packets.send(&hello, &[]).await?)
}

/// The version to speak, and the number of runs that the holder will introduce.
async fn hear_reply(packets: &Packets) -> Result<(u32, u32), HolderError> {
    loop {
        // The ends of runs may come first: they are in the states, too.
        let (message, _) = packets.receive::<FromHolder>().await?;
        let Some(from_holder::Message::Hello(reply)) = message.message else {
            continue;
        };
        let HelloReply {
            protocol,
            runs,
            oldest,
        } = reply;
        let (ours, theirs) = (ours(), Versions::said(protocol, oldest));
        let version = ours
            .agree(theirs)
            .ok_or(HolderError::Protocol { theirs, ours })?;
        return Ok((version, runs.min(MAX_RUNS)));
    }
}

async fn hear_runs(packets: &Packets, count: u32) -> Result<Vec<(RunState, Fds)>, HolderError> {
    let mut runs = Vec::new();
    let mut left = count;
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

/// What this daemon speaks.
#[cfg(not(feature = "fault-points"))]
fn ours() -> Versions {
    Versions::OURS
}

/// What this daemon speaks, or what a test lets it claim (`LODGE_TEST_PROTOCOL=<oldest>-<newest>`), as a daemon of
/// another version would.
#[cfg(feature = "fault-points")]
fn ours() -> Versions {
    let claimed = std::env::var("LODGE_TEST_PROTOCOL").ok();
    let claimed = claimed.as_deref().and_then(|text| text.split_once('-'));
    let parsed = claimed.and_then(|(oldest, newest)| {
        Some(Versions {
            oldest: oldest.parse().ok()?,
            newest: newest.parse().ok()?,
        })
    });
    parsed.unwrap_or(Versions::OURS)
}
