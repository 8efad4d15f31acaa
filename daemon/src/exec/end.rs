//! How a run ended: a pure function of what the kernel said and of what was asked.
//!
//! Nothing is guessed: a reason that the kernel's facts do not carry is not given.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::sandbox::id::RunId;

/// `exit_code` of a run that reached its timeout, as timeout(1) has it.
const EXIT_TIMED_OUT: i32 = 124;
/// What is added to a signal's number.
const EXIT_BY_SIGNAL: i32 = 128;
/// `exit_code` where the end is not known.
const EXIT_LOST: i32 = -1;
const SIGKILL: i32 = 9;

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The command exited by itself.
    Exited,
    /// A signal ended the command.
    Signaled,
    /// It reached its timeout.
    TimedOut,
    /// The kernel ended a process of it for want of memory, by the kernel's own counter, and the others went with that one.
    OomKilled,
    /// A caller ended it.
    Cancelled,
    /// Its sandbox was stopped or deleted.
    SandboxStopped,
    /// PID 1 of the sandbox died; what became of the command is not known.
    Lost,
}

/// What is known of a command's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fact {
    /// PID 1 reaped it.
    Reaped {
        /// The wait status as the kernel gave it.
        wait_status: i32,
        /// What, if anything, PID 1 had been ending it for.
        ended_by: EndedBy,
    },
    /// The sandbox was stopped, and PID 1 went before it could tell.
    Stopped,
    /// PID 1 died unasked.
    Lost,
}

/// Who had begun to end a command when it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndedBy {
    /// Nobody.
    Itself,
    /// Its deadline had passed.
    Deadline,
    /// A caller had killed the run.
    Caller,
    /// The sandbox was being stopped.
    Stop,
}

/// Reason, exit code and signal of an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    /// Why.
    pub reason: EndReason,
    /// 124 on timeout, 137 for want of memory, 128+n by signal n, else the status; -1 for LOST.
    pub exit_code: i32,
    /// The signal that ended the command.
    pub signal: Option<i32>,
    /// The raw wait status.
    pub wait_status: Option<i32>,
}

/// The verdict on a command's end. `oom_kills` is the counter of the run's own group; `None` where it is unknown.
pub fn verdict(fact: Fact, oom_kills: Option<u64>) -> Verdict {
    let (wait_status, ended_by) = match fact {
        Fact::Reaped {
            wait_status,
            ended_by,
        } => (wait_status, ended_by),
        // The end of a pid namespace kills all in it with SIGKILL; nobody was left to report the status.
        Fact::Stopped => return unreported(EndReason::SandboxStopped, EXIT_BY_SIGNAL + SIGKILL),
        Fact::Lost => return unreported(EndReason::Lost, EXIT_LOST),
    };
    let signal = Some(wait_status & 0x7f).filter(|n| *n != 0);
    let status = signal.map_or((wait_status >> 8) & 0xff, |n| EXIT_BY_SIGNAL + n);
    // Whatever the command made of it meanwhile: its run ends there.
    let oom = oom_kills.is_some_and(|kills| kills > 0);
    let reason = match ended_by {
        EndedBy::Deadline => EndReason::TimedOut,
        EndedBy::Caller => EndReason::Cancelled,
        EndedBy::Stop if signal.is_some() => EndReason::SandboxStopped,
        EndedBy::Stop | EndedBy::Itself if oom => EndReason::OomKilled,
        EndedBy::Stop | EndedBy::Itself if signal.is_some() => EndReason::Signaled,
        EndedBy::Stop | EndedBy::Itself => EndReason::Exited,
    };
    let exit_code = match reason {
        EndReason::TimedOut => EXIT_TIMED_OUT,
        EndReason::OomKilled => EXIT_BY_SIGNAL + SIGKILL,
        _ => status,
    };
    Verdict {
        reason,
        exit_code,
        signal,
        wait_status: Some(wait_status),
    }
}

fn unreported(reason: EndReason, exit_code: i32) -> Verdict {
    Verdict {
        reason,
        exit_code,
        signal: None,
        wait_status: None,
    }
}

/// Where a sandbox has no room left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskFullPlace {
    /// The root file system has no bytes left.
    Root,
    /// The root file system takes no further file.
    RootInodes,
    /// /dev/shm has no bytes left.
    Shm,
}

/// The end of a run, as it is kept and told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunResult {
    /// The run.
    pub run: RunId,
    /// Reason, exit code, signal and raw status.
    pub verdict: Verdict,
    /// Processes of the run that live on.
    pub left_running: u32,
    /// From the fork to the command's end.
    pub duration: Duration,
    /// Processor time of all its processes; `None` if unknown.
    pub cpu_time: Option<Duration>,
    /// Highest memory of all its processes together, in bytes; `None` if unknown.
    pub peak_memory: Option<u64>,
    /// Its processes that the kernel killed for want of memory; `None` if unknown.
    pub oom_kills: Option<u64>,
    /// What a reader should know; empty if nothing.
    pub message: String,
    /// Bytes written to standard output.
    pub stdout_bytes: u64,
    /// Bytes written to standard error.
    pub stderr_bytes: u64,
    /// Where the sandbox had no room left then, each place once. See `entry` for the lines that have it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disk_full: Vec<DiskFullPlace>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reaped(wait_status: i32, ended_by: EndedBy, oom_kills: Option<u64>) -> (EndReason, i32) {
        let verdict = verdict(
            Fact::Reaped {
                wait_status,
                ended_by,
            },
            oom_kills,
        );
        assert_eq!(verdict.wait_status, Some(wait_status));
        (verdict.reason, verdict.exit_code)
    }

    #[test]
    fn exit_code_is_a_function_of_the_status() {
        assert_eq!(reaped(0, EndedBy::Itself, Some(0)), (EndReason::Exited, 0));
        assert_eq!(
            reaped(3 << 8, EndedBy::Itself, None),
            (EndReason::Exited, 3)
        );
        assert_eq!(
            reaped(9, EndedBy::Itself, Some(0)),
            (EndReason::Signaled, 137)
        );
        assert_eq!(
            reaped(11 | 0x80, EndedBy::Itself, Some(0)),
            (EndReason::Signaled, 139)
        );
        assert_eq!(
            reaped(15, EndedBy::Deadline, Some(0)),
            (EndReason::TimedOut, 124)
        );
        assert_eq!(
            reaped(0, EndedBy::Deadline, Some(0)),
            (EndReason::TimedOut, 124)
        );
        assert_eq!(
            reaped(15, EndedBy::Caller, Some(0)),
            (EndReason::Cancelled, 143)
        );
        assert_eq!(
            reaped(9, EndedBy::Stop, Some(0)),
            (EndReason::SandboxStopped, 137)
        );
        assert_eq!(reaped(0, EndedBy::Stop, Some(0)), (EndReason::Exited, 0));
    }

    #[test]
    fn oom_needs_the_kernels_counter() {
        assert_eq!(
            reaped(137 << 8, EndedBy::Itself, Some(0)),
            (EndReason::Exited, 137)
        );
        assert_eq!(reaped(9, EndedBy::Itself, None), (EndReason::Signaled, 137));
        assert_eq!(
            reaped(9, EndedBy::Itself, Some(1)),
            (EndReason::OomKilled, 137)
        );
        assert_eq!(
            reaped(137 << 8, EndedBy::Itself, Some(1)),
            (EndReason::OomKilled, 137)
        );
        assert_eq!(
            reaped(0, EndedBy::Itself, Some(1)),
            (EndReason::OomKilled, 137)
        );
        assert_eq!(
            reaped(9, EndedBy::Deadline, Some(1)),
            (EndReason::TimedOut, 124)
        );
    }

    #[test]
    fn an_unreported_end_has_no_status() {
        let lost = verdict(Fact::Lost, Some(1));
        assert_eq!(
            (lost.reason, lost.exit_code, lost.wait_status),
            (EndReason::Lost, -1, None)
        );
        let stopped = verdict(Fact::Stopped, None);
        assert_eq!(
            (stopped.reason, stopped.exit_code),
            (EndReason::SandboxStopped, 137)
        );
    }
}
