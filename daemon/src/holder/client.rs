//! One sandbox's holder: spawn, kill, forget, and the ends of runs.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lodge_holder::protocol::{Fds, MAX_PACKET, PacketError};
use lodge_kernel::cgroup::RunFds;
use lodge_kernel::sys::pidfd;
use lodge_proto::holder::{
    self as wire, ExecSpec, Exited, FdRole, FromHolder, StepFailure, ToHolder, from_holder,
    to_holder,
};
use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{oneshot, watch};

use super::error::HolderError;
use super::launcher::{LaunchSpec, Launcher, Started};
use super::memfd;
use super::packets::Packets;
use crate::sandbox::id::RunId;

/// Whether the command's end kills what it left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillOnExit {
    /// Survivors live on.
    No,
    /// The run's whole leaf is killed: it has secrets.
    Yes,
}

/// What a sandbox's deadlines do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clocks {
    /// They count down.
    Going,
    /// They stand still.
    Stopped,
}

/// A command to be started. It has no `Debug`: the script may hold anything.
pub struct Spawn {
    /// The run.
    pub run: RunId,
    /// How long it may run; `None` means no limit.
    pub timeout: Option<Duration>,
    /// From SIGTERM to the kill of the leaf.
    pub grace: Duration,
    /// What happens to survivors.
    pub kill_on_exit: KillOnExit,
    /// The run's group.
    pub leaf: RunFds,
    /// What to execute. Wiped once it is on its way.
    pub spec: ExecSpec,
    /// The script of a shell-form spec without arguments, longer than [`super::SCRIPT_ARGUMENT_MAX`].
    pub script: Option<Vec<u8>>,
    /// The command's standard input; `None` means /dev/null.
    pub stdin: Option<OwnedFd>,
    /// The command's standard output.
    pub stdout: OwnedFd,
    /// The command's standard error.
    pub stderr: OwnedFd,
    /// What the holder keeps for the next daemon: read ends, spools, secrets.
    pub kept: Vec<(FdRole, OwnedFd)>,
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

#[derive(Debug)]
pub(super) struct Shared {
    packets: Packets,
    pid: i32,
    pidfd: AsyncFd<OwnedFd>,
    watched: Mutex<HashMap<String, oneshot::Sender<RunEnd>>>,
    stopping: AtomicBool,
    dead: watch::Sender<bool>,
}

impl Holder {
    /// Starts a sandbox; answers when it is made.
    ///
    /// # Errors
    /// [`HolderError::Step`] names the step that failed; nothing is left of the attempt but what the caller had made.
    pub async fn launch(launcher: &Launcher, spec: LaunchSpec) -> Result<Self, HolderError> {
        let Started {
            pid,
            pidfd,
            connection,
        } = launcher.launch(spec).await?;
        let packets =
            Packets::new(connection).map_err(HolderError::os("watch the holder's connection"))?;
        Self::new(packets, pid, pidfd, HashMap::new())
    }

    /// Takes a connection over, with watches of runs that are known already.
    pub(super) fn new(
        packets: Packets,
        pid: i32,
        pidfd: OwnedFd,
        watched: HashMap<String, oneshot::Sender<RunEnd>>,
    ) -> Result<Self, HolderError> {
        let pidfd = crate::reactor::register(pidfd, Interest::READABLE)
            .map_err(HolderError::os("watch the holder"))?;
        let shared = Arc::new(Shared {
            packets,
            pid,
            pidfd,
            watched: Mutex::new(watched),
            stopping: AtomicBool::new(false),
            dead: watch::Sender::new(false),
        });
        tokio::spawn(Arc::clone(&shared).read());
        Ok(Self(shared))
    }

    pub(super) fn watch(&self, id: String, told: oneshot::Receiver<RunEnd>) -> RunWatch {
        RunWatch {
            id,
            told,
            shared: Arc::clone(&self.0),
        }
    }

    /// PID 1 as the host sees it.
    pub fn pid(&self) -> i32 {
        self.0.pid
    }

    /// Whether PID 1 is known to have died.
    pub fn is_dead(&self) -> bool {
        *self.0.dead.borrow()
    }

    /// Waits until PID 1 has died.
    pub async fn died(&self) {
        // The sender lives in `self`: the wait cannot fail.
        let _ = self.0.dead.subscribe().wait_for(|dead| *dead).await;
    }

    /// From now on the holder's death means that its runs were stopped, not lost.
    pub fn mark_stopping(&self) {
        self.0.stopping.store(true, Ordering::SeqCst);
    }

    /// Whether the sandbox is being stopped: a run that a signal ends now was ended by that.
    pub fn is_stopping(&self) -> bool {
        self.0.stopping.load(Ordering::SeqCst)
    }

    /// Kills PID 1, and with it every process of the sandbox.
    ///
    /// # Errors
    /// Where the signal cannot be sent; a holder that has died already is no error.
    pub fn kill_process(&self) -> Result<(), HolderError> {
        match pidfd::send_signal(self.0.pidfd.get_ref().as_fd(), Signal::SIGKILL) {
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
        let (tell, told) = oneshot::channel();
        self.0.watched().insert(id.clone(), tell);
        // From here on the watch itself sees to the entry, also if this call is given up while it waits.
        let watch = self.watch(id, told);
        if self.is_dead() {
            return Err(HolderError::Gone);
        }
        self.send(to_holder::Message::Spawn(message), &fds).await?;
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
        self.send(to_holder::Message::Frozen(frozen), &Fds::default())
            .await
    }

    async fn send(&self, message: to_holder::Message, fds: &Fds) -> Result<(), HolderError> {
        let message = ToHolder {
            message: Some(message),
            fds: fds.roles(),
        };
        self.0
            .packets
            .send(&message, &fds.borrowed())
            .await
            .map_err(|error| match error {
                PacketError::Closed => HolderError::Gone,
                other => HolderError::Packet(other),
            })
    }
}

impl Shared {
    fn watched(&self) -> MutexGuard<'_, HashMap<String, oneshot::Sender<RunEnd>>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a run's end is called whose holder says nothing any more.
    fn end_without_word(&self) -> RunEnd {
        if self.stopping.load(Ordering::SeqCst) {
            RunEnd::Stopped
        } else {
            RunEnd::Lost
        }
    }

    /// Hands ends to those who wait for them, until the holder is gone.
    async fn read(self: Arc<Self>) {
        let mut buffer = vec![0; MAX_PACKET];
        while let Ok((message, _)) = self.packets.receive_into::<FromHolder>(&mut buffer).await {
            self.dispatch(message);
        }
        // A holder that closed the connection and lives can not be talked to any more, and would keep its runs for ever.
        let _ = pidfd::send_signal(self.pidfd.get_ref().as_fd(), Signal::SIGKILL);
        let _ = self.pidfd.readable().await;
        self.dead.send_replace(true);
        // Waiting ones see their sender dropped, and call the end by its name.
        self.watched().clear();
    }

    fn dispatch(&self, message: FromHolder) {
        let (id, end) = match message.message {
            Some(from_holder::Message::Exited(exited)) => {
                (exited.run_id.clone(), RunEnd::Exited(exited))
            }
            Some(from_holder::Message::SpawnFailed(failed)) => (
                failed.run_id,
                RunEnd::SpawnFailed(failed.failure.unwrap_or_default()),
            ),
            // Only a new connection is greeted; more of it, and what this version does not know, changes nothing.
            Some(from_holder::Message::Hello(_) | from_holder::Message::RunState(_)) | None => {
                return;
            }
        };
        if let Some(waiting) = self.watched().remove(&id) {
            // Nobody may be waiting any more.
            let _ = waiting.send(end);
        }
    }
}

fn encode(spawn: Spawn) -> Result<(wire::Spawn, Fds), HolderError> {
    let mut fds = Fds::default();
    fds.push(FdRole::Leaf, spawn.leaf.leaf);
    fds.push(FdRole::LeafKill, spawn.leaf.kill);
    spawn
        .leaf
        .v1_tasks
        .into_iter()
        .for_each(|fd| fds.push(FdRole::V1TasksLeaf, fd));
    fds.push(FdRole::ExecSpec, memfd::spec(spawn.spec)?);
    if let Some(text) = spawn.script {
        fds.push(FdRole::Script, memfd::script(&text)?);
    }
    if let Some(stdin) = spawn.stdin {
        fds.push(FdRole::Stdin, stdin);
    }
    fds.push(FdRole::Stdout, spawn.stdout);
    fds.push(FdRole::Stderr, spawn.stderr);
    spawn
        .kept
        .into_iter()
        .for_each(|(role, fd)| fds.push(role, fd));
    let message = wire::Spawn {
        run_id: spawn.run.to_string(),
        // A timeout below a millisecond is one, not none.
        timeout_ms: spawn.timeout.map_or(0, |timeout| millis(timeout).max(1)),
        grace_ms: millis(spawn.grace),
        kill_on_exit: spawn.kill_on_exit == KillOnExit::Yes,
    };
    Ok((message, fds))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
