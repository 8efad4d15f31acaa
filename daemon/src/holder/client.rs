//! One sandbox's holder: spawn, kill, forget, and the ends of runs.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use lodge_holder::protocol::{Fds, Versions};
use lodge_kernel::sys::pidfd;
use lodge_proto::holder::{self as wire, Exited, StepFailure, to_holder};
use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};
use tokio::sync::oneshot;

use super::connection::{Condition, Link, Shared};
use super::error::HolderError;
use super::launcher::{LaunchSpec, Launcher, Started};
use super::packets::Packets;
use super::spawn::{Spawn, encode, millis};
use crate::sandbox::id::RunId;

/// What a sandbox's deadlines do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clocks {
    /// They count down.
    Going,
    /// They stand still.
    Stopped,
}

/// How a run ended, in the holder's words.
#[derive(Debug)]
pub enum RunEnd {
    /// The kernel's word on the command.
    Exited(Exited),
    /// The command was never forked.
    SpawnFailed(StepFailure),
    /// The sandbox was stopped.
    Stopped,
    /// The holder died: nobody knows.
    Lost,
}

/// The end of one run, to come.
#[derive(Debug)]
pub struct RunWatch {
    id: String,
    told: oneshot::Receiver<RunEnd>,
    shared: Arc<Shared>,
}

impl RunWatch {
    /// Waits for the end.
    pub async fn end(mut self) -> RunEnd {
        match (&mut self.told).await {
            Ok(end) => end,
            Err(_) => self.shared.end_without_word(),
        }
    }
}

impl Drop for RunWatch {
    /// Nobody waits any more.
    fn drop(&mut self) {
        self.shared.watched().remove(&self.id);
    }
}

/// Handle to a sandbox's PID 1. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Holder(Arc<Shared>);

impl Holder {
    /// Starts a sandbox; answers when it is made.
    ///
    /// # Errors
    /// [`HolderError::Step`] names the step that failed; nothing is left of the attempt but what the caller had made.
    pub async fn launch(launcher: &Launcher, spec: LaunchSpec) -> Result<Self, HolderError> {
        let socket = spec.socket.clone();
        let Started {
            pid,
            pidfd,
            connection,
        } = launcher.launch(spec).await?;
        let packets =
            Packets::new(connection).map_err(HolderError::os("watch the holder's connection"))?;
        // It was forked from a copy of this very program.
        let link = Link::new(packets, Versions::OURS.newest);
        let holder = Self::new(link, &socket, pid, pidfd)?;
        holder.listen();
        Ok(holder)
    }

    /// Takes a connection over.
    pub(super) fn new(
        link: Link,
        socket: &Path,
        pid: i32,
        pidfd: OwnedFd,
    ) -> Result<Self, HolderError> {
        Shared::new(link, socket, pid, pidfd).map(Self)
    }

    /// Begins to hear it; runs that are known already are watched by then.
    pub(super) fn listen(&self) {
        tokio::spawn(Arc::clone(&self.0).serve());
    }

    /// Watches a run.
    pub(super) fn watch(&self, id: String, link: &Link) -> RunWatch {
        let told = self.0.watch(&id, link);
        RunWatch {
            id,
            told,
            shared: Arc::clone(&self.0),
        }
    }

    /// The watch of a run whose end is known.
    pub(super) fn ended(&self, exited: Exited) -> RunWatch {
        let (tell, told) = oneshot::channel();
        let id = exited.run_id.clone();
        drop(tell.send(RunEnd::Exited(exited)));
        RunWatch {
            id,
            told,
            shared: Arc::clone(&self.0),
        }
    }

    /// PID 1 as the host sees it.
    pub fn pid(&self) -> i32 {
        self.0.pid()
    }

    /// Whether PID 1 is known to have died.
    pub fn is_dead(&self) -> bool {
        matches!(self.0.condition(), Condition::Dead(_))
    }

    /// Waits until PID 1 has died.
    pub async fn died(&self) {
        self.0
            .until(|condition| matches!(condition, Condition::Dead(_)))
            .await;
    }

    /// Why PID 1 was ended by this daemon, if it was: it could not be talked to.
    pub fn fault(&self) -> Option<&'static str> {
        match self.0.condition() {
            Condition::Dead(fault) => fault,
            Condition::Well | Condition::Silent => None,
        }
    }

    /// Whether PID 1 lives and has not answered for a while: it is stopped, or stuck.
    pub fn is_silent(&self) -> bool {
        matches!(self.0.condition(), Condition::Silent)
    }

    /// Waits until PID 1 has not answered for a while. It is only looked at while somebody waits for a run of it.
    pub async fn fell_silent(&self) {
        self.0
            .until(|condition| matches!(condition, Condition::Silent))
            .await;
    }

    /// From now on the holder's death means that its runs were stopped, not lost.
    pub fn mark_stopping(&self) {
        self.0.mark_stopping();
    }

    /// Whether the sandbox is being stopped: a run that a signal ends now was ended by that.
    pub fn is_stopping(&self) -> bool {
        self.0.is_stopping()
    }

    /// Kills PID 1, and with it every process of the sandbox.
    ///
    /// # Errors
    /// Where the signal cannot be sent; a holder that has died already is no error.
    pub fn kill_process(&self) -> Result<(), HolderError> {
        match pidfd::send_signal(self.0.pidfd().as_fd(), Signal::SIGKILL) {
            Ok(()) | Err(nix::errno::Errno::ESRCH) => Ok(()),
            Err(errno) => Err(HolderError::os("kill the holder")(errno)),
        }
    }

    /// Starts a command.
    ///
    /// # Errors
    /// Where it could not be asked for; the run has then not been started.
    pub async fn spawn(&self, spawn: Spawn) -> Result<RunWatch, HolderError> {
        let id = spawn.run.to_string();
        let (message, fds) = encode(spawn)?;
        // From here on the watch itself sees to the entry, also if this call is given up while it waits.
        let link = self.0.link();
        let watch = self.watch(id, &link);
        match self.0.condition() {
            Condition::Dead(_) => return Err(HolderError::Gone),
            Condition::Silent => return Err(HolderError::Silent),
            Condition::Well => {}
        }
        // On that connection or not at all: should it break, what was asked for on it is told to have failed.
        self.0
            .send(&link, to_holder::Message::Spawn(message), &fds)
            .await?;
        Ok(watch)
    }

    /// Ends a run: SIGTERM to all its processes, the grace, then the kill of its leaf.
    ///
    /// # Errors
    /// Where the holder could not be told.
    pub async fn kill_run(&self, run: &RunId, grace: Duration) -> Result<(), HolderError> {
        let kill = wire::Kill {
            run_id: run.to_string(),
            grace_ms: millis(grace),
        };
        self.send(to_holder::Message::Kill(kill), &Fds::default())
            .await
    }

    /// Lets the holder let go of a run whose end is recorded and whose pipes are at their end.
    ///
    /// # Errors
    /// Where the holder could not be told.
    pub async fn forget(&self, run: &RunId) -> Result<(), HolderError> {
        let forget = wire::Forget {
            run_id: run.to_string(),
        };
        self.send(to_holder::Message::Forget(forget), &Fds::default())
            .await
    }

    /// Says that the runs are about to be frozen, or were thawed just now: deadlines stop, or go on.
    ///
    /// # Errors
    /// Where the holder could not be told.
    pub async fn set_clocks(&self, clocks: Clocks) -> Result<(), HolderError> {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
        let frozen = wire::Frozen {
            frozen: clocks == Clocks::Stopped,
            at_ns: u64::try_from(now.as_nanos()).unwrap_or(0),
        };
        *self.0.clocks.lock().unwrap_or_else(PoisonError::into_inner) = Some(frozen);
        self.send(to_holder::Message::Frozen(frozen), &Fds::default())
            .await
    }

    async fn send(&self, message: to_holder::Message, fds: &Fds) -> Result<(), HolderError> {
        self.0.send(&self.0.link(), message, fds).await
    }
}
