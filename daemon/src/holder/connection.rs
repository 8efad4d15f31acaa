//! The connection to one holder: what is sent and heard, and what becomes of it when it breaks.
//!
//! A holder that closed its connection and lives is connected to again, a bounded number of times; one that says what is no
//! message of the protocol is ended, and with it its sandbox: nobody knows any more what it does. Whether a quiet one is
//! still there is looked at in `watchdog`.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use lodge_holder::protocol::{Fds, MAX_PACKET, PacketError};
use lodge_kernel::sys::pidfd;
use lodge_proto::holder::{FromHolder, Frozen, StepFailure, ToHolder, from_holder, to_holder};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};

use super::client::RunEnd;
use super::error::HolderError;
use super::packets::Packets;
use super::proc_stat::ProcStat;
use super::reconnect::{Greeting, greet};
use super::watchdog::Watchdog;
use crate::error::chain;

/// How long a message may wait for room in a holder's queue. It holds hundreds, and a holder reads at once.
const SEND_PATIENCE: Duration = Duration::from_secs(5);
/// Before each try to connect again. The first one lets a holder that is dying be seen to be dead.
const RECONNECT_AFTER: [Duration; 5] = [
    Duration::from_millis(20),
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_millis(1_000),
    Duration::from_millis(3_000),
];
/// Errors of the socket after which the next packet may do.
const PASSING: &[Errno] = &[Errno::ENOBUFS, Errno::ENOMEM];
/// Before the next packet is tried after one of them.
const PASSING_PAUSE: Duration = Duration::from_millis(20);

/// How a holder is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    /// It answers, as far as anybody knows.
    Well,
    /// It lives and does not answer.
    Silent,
    /// It has died; with the reason if this daemon ended it.
    Dead(Option<&'static str>),
}

/// One connection, and the version of the protocol that is spoken on it.
#[derive(Debug, Clone)]
pub(super) struct Link {
    packets: Arc<Packets>,
    pub(super) version: u32,
    /// The how manieth connection to this holder it is.
    number: u64,
}

impl Link {
    pub(super) fn new(packets: Packets, version: u32) -> Self {
        Self {
            packets: Arc::new(packets),
            version,
            number: 0,
        }
    }

    fn after(self, earlier: &Self) -> Self {
        Self {
            number: earlier.number + 1,
            ..self
        }
    }

    async fn send(&self, message: to_holder::Message, fds: &Fds) -> Result<(), PacketError> {
        let message = ToHolder {
            message: Some(message),
            fds: fds.roles(),
        };
        self.packets.send(&message, &fds.borrowed()).await
    }
}

/// Somebody who waits for a run's end.
#[derive(Debug)]
struct Waiting {
    tell: oneshot::Sender<RunEnd>,
    /// The connection on which the run was or will be asked for.
    link: u64,
}

/// The runs that somebody waits for.
#[derive(Debug, Default)]
pub(super) struct Watched(HashMap<String, Waiting>);

impl Watched {
    /// Nobody waits for it any more.
    pub(super) fn remove(&mut self, id: &str) {
        self.0.remove(id);
    }

    /// Whether nobody waits for any run.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn tell(&mut self, id: &str, end: RunEnd) {
        if let Some(waiting) = self.0.remove(id) {
            // Nobody may be waiting any more.
            let _ = waiting.tell.send(end);
        }
    }

    /// Runs that were asked for on connections up to `link` and that the holder does not know were never started: their
    /// requests went with the connection.
    fn never_started(&mut self, link: u64, known: &HashSet<String>) {
        let lost: Vec<String> = self
            .0
            .iter()
            .filter(|(id, waiting)| waiting.link <= link && !known.contains(*id))
            .map(|(id, _)| id.clone())
            .collect();
        for id in lost {
            self.tell(&id, RunEnd::SpawnFailed(connection_broke()));
        }
    }
}

fn connection_broke() -> StepFailure {
    StepFailure {
        step: "spawn".to_owned(),
        object: "connection to PID 1".to_owned(),
        errno: Errno::ECONNRESET as i32,
    }
}

/// What handles, watches and the reading task of one holder share.
#[derive(Debug)]
pub(super) struct Shared {
    link: RwLock<Link>,
    socket: PathBuf,
    pid: i32,
    pidfd: AsyncFd<OwnedFd>,
    watched: Mutex<Watched>,
    stopping: AtomicBool,
    /// What was last to be said of the clocks: said again on a new connection, since the old one may have lost it.
    pub(super) clocks: Mutex<Option<Frozen>>,
    condition: watch::Sender<Condition>,
}

impl Shared {
    pub(super) fn new(
        link: Link,
        socket: &Path,
        pid: i32,
        pidfd: OwnedFd,
    ) -> Result<Arc<Self>, HolderError> {
        let pidfd = crate::reactor::register(pidfd, Interest::READABLE)
            .map_err(HolderError::os("watch the holder"))?;
        Ok(Arc::new(Self {
            link: RwLock::new(link),
            socket: socket.to_owned(),
            pid,
            pidfd,
            watched: Mutex::default(),
            stopping: AtomicBool::new(false),
            clocks: Mutex::default(),
            condition: watch::Sender::new(Condition::Well),
        }))
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    /// Where it listens for the next daemon.
    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(super) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.get_ref().as_fd()
    }

    pub(super) fn mark_stopping(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    pub(super) fn condition(&self) -> Condition {
        *self.condition.borrow()
    }

    pub(super) async fn until(&self, wanted: impl FnMut(&Condition) -> bool) {
        // The sender lives in `self`: the wait cannot fail.
        let _ = self.condition.subscribe().wait_for(wanted).await;
    }

    /// Notes whether it answers; a dead one stays dead.
    pub(super) fn note(&self, now: Condition) {
        self.condition.send_if_modified(|condition| {
            let changes = !matches!(condition, Condition::Dead(_)) && *condition != now;
            if changes {
                *condition = now;
            }
            changes
        });
    }

    pub(super) fn watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a run that is asked for on this connection, or known on it.
    pub(super) fn watch(&self, id: &str, link: &Link) -> oneshot::Receiver<RunEnd> {
        let (tell, told) = oneshot::channel();
        let link = link.number;
        let waiting = Waiting { tell, link };
        self.watched().0.insert(id.to_owned(), waiting);
        told
    }

    /// What a run's end is called whose holder says nothing any more.
    pub(super) fn end_without_word(&self) -> RunEnd {
        if self.is_stopping() {
            RunEnd::Stopped
        } else {
            RunEnd::Lost
        }
    }

    pub(super) fn link(&self) -> Link {
        self.link
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Sends a message, with a bound on the wait. What was sent on a connection that breaks may not have been heard: who
    /// waits for a run learns it when the holder is connected to again.
    pub(super) async fn send(
        &self,
        link: &Link,
        message: to_holder::Message,
        fds: &Fds,
    ) -> Result<(), HolderError> {
        match timeout(SEND_PATIENCE, link.send(message, fds)).await {
            Err(_) => Err(HolderError::Silent),
            Ok(Ok(())) => Ok(()),
            Ok(Err(PacketError::Closed)) if self.is_dying() => Err(HolderError::Gone),
            Ok(Err(error)) => Err(HolderError::Packet(error)),
        }
    }

    /// Whether its connection is closed because it ends: being stopped, exiting (which closes its descriptors first), or gone.
    fn is_dying(&self) -> bool {
        self.is_stopping()
            || matches!(self.condition(), Condition::Dead(_))
            || ProcStat::of(self.pid).map_or(true, |stat| stat.is_exiting())
    }

    /// Hands ends to those who wait for them, until the holder is gone.
    pub(super) async fn serve(self: Arc<Self>) {
        let fault = loop {
            let error = self.read().await;
            if let Some(fault) = fault_of(&error) {
                break Some(fault);
            }
            match self.reconnect().await {
                Reconnected::Yes => {}
                Reconnected::HasDied => break None,
                Reconnected::No => {
                    break Some("it closed its connection and could not be reached again");
                }
            }
        };
        if let Some(fault) = fault {
            tracing::error!(
                pid = self.pid,
                fault,
                "PID 1 of a sandbox cannot be talked to, and is ended"
            );
        }
        // One that lives can not be talked to any more, and would keep its runs for ever.
        let _ = pidfd::send_signal(self.pidfd(), Signal::SIGKILL);
        let _ = self.pidfd.readable().await;
        self.condition.send_replace(Condition::Dead(fault));
        // Waiting ones see their sender dropped, and call the end by its name.
        self.watched().0.clear();
    }

    /// Reads until that fails.
    async fn read(&self) -> PacketError {
        let link = self.link();
        let mut watchdog = Watchdog::new();
        let mut buffer = vec![0; MAX_PACKET];
        loop {
            let packet = tokio::select! {
                packet = link.packets.receive_into::<FromHolder>(&mut buffer) => packet,
                () = watchdog.turn() => {
                    watchdog.look(self, &link).await;
                    continue;
                }
            };
            match packet {
                Ok((message, _)) => {
                    watchdog.heard(self);
                    self.dispatch(message);
                }
                Err(PacketError::Socket(errno)) if PASSING.contains(&errno) => {
                    sleep(PASSING_PAUSE).await;
                }
                Err(error) => return error,
            }
        }
    }

    fn dispatch(&self, message: FromHolder) {
        match message.message {
            Some(from_holder::Message::Exited(exited)) => {
                let id = exited.run_id.clone();
                self.watched().tell(&id, RunEnd::Exited(exited));
            }
            Some(from_holder::Message::SpawnFailed(failed)) => {
                let end = RunEnd::SpawnFailed(failed.failure.unwrap_or_default());
                self.watched().tell(&failed.run_id, end);
            }
            // Only a new connection is greeted; more of it, and what this version does not know, changes nothing.
            Some(
                from_holder::Message::Hello(_)
                | from_holder::Message::RunState(_)
                | from_holder::Message::Pong(_),
            )
            | None => {}
        }
    }

    /// Connects again to a holder that closed the connection, and compares what both know of its runs.
    async fn reconnect(&self) -> Reconnected {
        for pause in RECONNECT_AFTER {
            tokio::select! {
                biased;
                _ = self.pidfd.readable() => return Reconnected::HasDied,
                () = sleep(pause) => {}
            }
            // Its socket may be that of the next PID 1 by now, which would take us for its new daemon.
            if self.is_stopping() {
                continue;
            }
            match greet(&self.socket).await {
                Ok(greeting) => {
                    self.go_on(greeting);
                    self.say_clocks_again().await;
                    return Reconnected::Yes;
                }
                Err(error) => {
                    tracing::debug!(pid = self.pid, error = %chain(&error), "not connected again");
                }
            }
        }
        Reconnected::No
    }

    /// PID 1 takes the same word twice as once.
    async fn say_clocks_again(&self) {
        let said = *self.clocks.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(frozen) = said else { return };
        let word = to_holder::Message::Frozen(frozen);
        if let Err(error) = self.send(&self.link(), word, &Fds::default()).await {
            tracing::warn!(pid = self.pid, error = %chain(&error), "PID 1 may have missed a pause or its end");
        }
    }

    fn go_on(&self, greeting: Greeting) {
        let Greeting {
            packets,
            version,
            runs,
        } = greeting;
        tracing::warn!(
            pid = self.pid,
            runs = runs.len(),
            "connected again to PID 1 of a sandbox"
        );
        let old = {
            let mut link = self.link.write().unwrap_or_else(PoisonError::into_inner);
            let old = link.clone();
            *link = Link::new(packets, version).after(&old);
            old
        };
        let known = runs.iter().map(|(state, _)| state.run_id.clone()).collect();
        let mut watched = self.watched();
        watched.never_started(old.number, &known);
        for (state, _) in runs {
            if let Some(exited) = state.exited {
                watched.tell(&state.run_id, RunEnd::Exited(exited));
            }
        }
    }
}

/// What came of connecting again.
enum Reconnected {
    Yes,
    HasDied,
    No,
}

/// What is wrong with a holder after which the connection is of no use; `None` if it only closed it.
fn fault_of(error: &PacketError) -> Option<&'static str> {
    match error {
        PacketError::Closed | PacketError::Socket(Errno::ECONNRESET | Errno::EPIPE) => None,
        PacketError::Malformed(_) => Some("it sent what is no message"),
        PacketError::TooLong(_) | PacketError::Socket(Errno::EMSGSIZE) => {
            Some("it sent too long a message")
        }
        PacketError::Descriptors { .. } => Some("it sent descriptors that it did not name"),
        PacketError::Socket(_) => Some("its connection failed"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;
    use std::process::Command;

    use nix::sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept, bind, listen, socket,
        socketpair,
    };

    use super::*;

    const FLAGS: SockFlag = SockFlag::SOCK_CLOEXEC.union(SockFlag::SOCK_NONBLOCK);

    /// A sandbox that was stopped may be started again before this is looked at, and its new PID 1 listens at the same place.
    #[tokio::test(start_paused = true)]
    async fn who_is_being_stopped_is_not_connected_to_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("socket");
        let (family, kind) = (AddressFamily::Unix, SockType::SeqPacket);
        let next = socket(family, kind, FLAGS, None).expect("a socket");
        bind(next.as_raw_fd(), &UnixAddr::new(&path).expect("a name")).expect("it is named");
        listen(&next, Backlog::MAXCONN).expect("it listens");
        let mut child = Command::new("sleep").arg("100").spawn().expect("a child");
        let pid = i32::try_from(child.id()).expect("a pid");
        let pidfd = pidfd::open(pid).expect("a pidfd");
        let (ours, _theirs) = socketpair(family, kind, None, FLAGS).expect("a pair");
        let link = Link::new(Packets::new(ours).expect("a connection"), 1);
        let shared = Shared::new(link, &path, pid, pidfd).expect("a holder");
        shared.mark_stopping();
        let came_of_it = shared.reconnect().await;
        child.kill().expect("it ends");
        child.wait().expect("it has ended");
        assert!(matches!(came_of_it, Reconnected::No));
        assert_eq!(accept(next.as_raw_fd()), Err(Errno::EAGAIN));
    }
}
