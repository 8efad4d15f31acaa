//! One run as the holder sees it.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};

use lodge_proto::holder::{Exited, FdRole, RunState, StepFailure};
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, read};
use prost::Message as _;

use crate::protocol::Fds;

/// Bytes read of a leaf's process list at once: about 8,000 pids, above every sensible pids limit.
const PROCESS_LIST: usize = 64 * 1024;

/// From the kill of a leaf to the first look at a command that is not reaped, and between two looks, in nanoseconds.
/// What nobody holds is reaped within a millisecond or two.
const HELD_LOOK_NS: u64 = 100_000_000;

/// How far the ending of a run has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Nobody ends it.
    No,
    /// SIGTERM was sent; the leaf is killed at this time (nanoseconds).
    Grace(u64),
    /// The leaf was killed, but its command not yet reaped; at this time (nanoseconds) we look who holds it.
    Held(u64),
    /// The leaf was killed.
    Killed,
}

/// Why a run is being ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Its deadline has passed.
    Deadline,
    /// The daemon asked for it.
    Request,
}

/// A run.
pub(crate) struct Run {
    pub(crate) id: String,
    pub(crate) pid: i32,
    pub(crate) started_ns: u64,
    /// When it is to be ended; `None` means never. Shifted by the time that the sandbox was frozen.
    pub(crate) deadline_ns: Option<u64>,
    pub(crate) grace_ns: u64,
    pub(crate) kill_on_exit: bool,
    pub(crate) ending: Ending,
    pub(crate) timed_out: bool,
    pub(crate) killed: bool,
    pub(crate) leaf: OwnedFd,
    pub(crate) leaf_kill: File,
    /// The read end on which the child tells why it could not execute its program.
    pub(crate) status: OwnedFd,
    pub(crate) kept: Fds,
    /// The end, once there is one.
    pub(crate) exited: Option<Exited>,
    /// Whether the daemon of this connection knows of the end.
    pub(crate) reported: bool,
    /// Whether the daemon of this connection knows of the run.
    pub(crate) introduced: bool,
}

impl Run {
    /// Records the command's end, and what had no room left then.
    pub(crate) fn end(&mut self, wait_status: i32, now_ns: u64, no_room: Vec<i32>) {
        self.exited = Some(Exited {
            run_id: self.id.clone(),
            wait_status,
            timed_out: self.timed_out,
            killed: self.killed,
            duration_ns: now_ns.saturating_sub(self.started_ns),
            exec_failure: self.exec_failure(),
            no_room,
        });
        self.deadline_ns = None;
        if self.kill_on_exit {
            self.kill_leaf();
        }
    }

    /// What the child wrote before it gave up; nothing if its exec succeeded.
    fn exec_failure(&self) -> Option<StepFailure> {
        let mut buffer = [0; 4096];
        match read(&self.status, &mut buffer) {
            Ok(length) if length > 0 => StepFailure::decode(&buffer[..length]).ok(),
            _ => None,
        }
    }

    /// Starts to end the run: SIGTERM to all its processes, then the grace.
    pub(crate) fn begin_ending(&mut self, cause: Cause, now_ns: u64, grace_ns: u64) {
        match cause {
            Cause::Deadline => self.timed_out |= self.exited.is_none(),
            Cause::Request => self.killed |= self.exited.is_none(),
        }
        self.deadline_ns = None;
        if self.ending == Ending::No {
            self.signal_all(Signal::SIGTERM);
            self.ending = Ending::Grace(now_ns.saturating_add(grace_ns));
        }
    }

    /// Goes on with the ending: kills the leaf when its grace is over, stops when nothing is left.
    pub(crate) fn continue_ending(&mut self, now_ns: u64) {
        match self.ending {
            Ending::Grace(until) if now_ns >= until => {
                self.kill_leaf();
                if self.exited.is_none() {
                    self.ending = Ending::Held(now_ns.saturating_add(HELD_LOOK_NS));
                }
            }
            Ending::Grace(_) if self.exited.is_some() && self.processes().is_empty() => {
                self.ending = Ending::Killed;
            }
            Ending::Held(_) if self.exited.is_some() => self.ending = Ending::Killed,
            Ending::Held(at) if now_ns >= at => {
                self.kill_tracer();
                self.ending = Ending::Held(now_ns.saturating_add(HELD_LOOK_NS));
            }
            _ => {}
        }
    }

    /// Kills a tracer of another run that does not let the dead command go: the kernel tells us of its end only when
    /// the tracer has asked for it or is gone, and a run must not outlast its deadline for that.
    fn kill_tracer(&self) {
        let Ok(status) = std::fs::read_to_string(format!("/proc/{}/status", self.pid)) else {
            return;
        };
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
        let dead = field("State:").is_some_and(|state| state.trim_start().starts_with('Z'));
        let tracer = field("TracerPid:").and_then(|pid| pid.trim().parse::<i32>().ok());
        if let Some(tracer) = tracer.filter(|pid| dead && *pid > 1) {
            // One that has gone meanwhile has let go.
            let _ = kill(Pid::from_raw(tracer), Signal::SIGKILL);
        }
    }

    /// Moves every time of a run that goes on: its sandbox was frozen for so long.
    pub(crate) fn shift(&mut self, pause_ns: u64) {
        if self.exited.is_none() {
            self.started_ns = self.started_ns.saturating_add(pause_ns);
        }
        self.deadline_ns = self.deadline_ns.map(|at| at.saturating_add(pause_ns));
        self.ending = match self.ending {
            Ending::Grace(until) => Ending::Grace(until.saturating_add(pause_ns)),
            Ending::Held(at) => Ending::Held(at.saturating_add(pause_ns)),
            other => other,
        };
    }

    /// Ends the run at once: a frozen process would take SIGTERM only when it is thawed, and the kill of the leaf reaches it
    /// as it is.
    pub(crate) fn end_frozen(&mut self) {
        self.killed |= self.exited.is_none();
        self.deadline_ns = None;
        self.kill_leaf();
    }

    /// SIGKILL to every process of the leaf, frozen and stopped ones too, and those that are just being forked.
    pub(crate) fn kill_leaf(&mut self) {
        self.ending = Ending::Killed;
        // The group exists as long as we hold its descriptor and the daemon does not remove it: then it is empty, and all is well.
        let _ = self.leaf_kill.write_all(b"1");
    }

    fn signal_all(&self, signal: Signal) {
        for pid in self.processes() {
            // One that has gone meanwhile needs no signal.
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    /// Whether the kernel says that its leaf is not frozen; a leaf that cannot be read is not known to be in motion.
    pub(crate) fn is_in_motion(&self) -> bool {
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let Ok(events) = openat(self.leaf.as_fd(), "cgroup.events", flags, Mode::empty()) else {
            return false;
        };
        let mut text = [0; 256];
        let length = read(&events, &mut text).unwrap_or(0);
        text[..length]
            .split(|byte| *byte == b'\n')
            .any(|line| line == b"frozen 0")
    }

    /// Pids of the leaf, as this pid namespace sees them. Best effort: the kill of the leaf does not depend on it.
    fn processes(&self) -> Vec<i32> {
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let Ok(list) = openat(self.leaf.as_fd(), "cgroup.procs", flags, Mode::empty()) else {
            return Vec::new();
        };
        let mut text = vec![0; PROCESS_LIST];
        let mut length = 0;
        while length < text.len() {
            match read(&list, &mut text[length..]) {
                Ok(0) => break,
                Ok(count) => length += count,
                Err(Errno::EINTR) => {}
                Err(_) => break,
            }
        }
        let lines = text[..length].split(|b| *b == b'\n');
        // Zero stands for a process that this pid namespace does not see; kill(0) would mean our own group.
        lines
            .filter_map(|line| std::str::from_utf8(line).ok()?.parse().ok())
            .filter(|pid| *pid > 1)
            .collect()
    }

    /// What a re-adopting daemon needs to know.
    pub(crate) fn state(&self) -> RunState {
        RunState {
            run_id: self.id.clone(),
            exited: self.exited.clone(),
            pid: self.pid,
            kill_on_exit: self.kill_on_exit,
            started_ns: self.started_ns,
        }
    }
}

impl Drop for Run {
    /// Wipes the secret values before their memory goes back to the kernel.
    fn drop(&mut self) {
        if let Some(secrets) = self.kept.take(FdRole::Secrets) {
            wipe(secrets);
        }
    }
}

/// Overwrites a memfd with zeros.
pub(crate) fn wipe(memfd: OwnedFd) {
    let file = File::from(memfd);
    let length = file.metadata().map_or(0, |m| m.len());
    let zeros = [0u8; 4096];
    let mut at = 0;
    while at < length {
        let count = usize::try_from(length - at).map_or(zeros.len(), |n| n.min(zeros.len()));
        match std::os::unix::fs::FileExt::write_at(&file, &zeros[..count], at) {
            Ok(written) if written > 0 => at += written as u64,
            _ => return,
        }
    }
}
