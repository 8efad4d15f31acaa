//! How a run ended, with its output.

use std::fmt;
use std::time::Duration;

use lodge_proto::v1 as pb;

use crate::capture::Captured;
use crate::error::{Error, Result};
use crate::wire::{duration, present};

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EndReason {
    /// The command exited by itself.
    Exited,
    /// A signal ended the command.
    Signaled,
    /// It reached its timeout.
    TimedOut,
    /// The kernel ended it for want of memory.
    OomKilled,
    /// A caller ended it.
    Cancelled,
    /// Its sandbox was stopped or deleted.
    SandboxStopped,
    /// PID 1 of the sandbox died; what became of the command is not known.
    Lost,
}

/// Where a sandbox had no room left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DiskFullPlace {
    /// Its root file system has no bytes left.
    Root,
    /// Its root file system takes no further file.
    RootInodes,
    /// /dev/shm has no bytes left.
    Shm,
}

/// How a run ended. Figures that could not be had are `None`, never a guess.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// The run's id.
    pub run_id: String,
    /// Why it ended.
    pub end_reason: EndReason,
    /// 124 on timeout, 128+n by signal n, else the exit status; -1 if lost.
    pub exit_code: i32,
    /// The signal that ended the command.
    pub signal: Option<i32>,
    /// The wait status as the kernel gave it.
    pub wait_status: Option<i32>,
    /// Processes of the run that live on.
    pub left_running: u32,
    /// From the fork to the command's end.
    pub duration: Option<Duration>,
    /// Processor time of all processes of the run.
    pub cpu_time: Option<Duration>,
    /// Highest memory of all processes of the run together, in bytes.
    pub peak_memory_bytes: Option<u64>,
    /// Processes of the run that the kernel killed for want of memory.
    pub oom_kills: Option<u64>,
    /// What a reader should know; empty if nothing.
    pub message: String,
    /// Bytes written to standard output. Exact.
    pub stdout_bytes: u64,
    /// Bytes written to standard error. Exact.
    pub stderr_bytes: u64,
    /// Where the sandbox had no room left when the command had ended, whether or not this run filled it.
    pub disk_full: Vec<DiskFullPlace>,
}

/// The result of an awaited run.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Output {
    /// How it ended.
    pub outcome: Outcome,
    /// What it wrote to standard output.
    pub stdout: Captured,
    /// What it wrote to standard error.
    pub stderr: Captured,
}

impl Output {
    /// The exit code; see [`Outcome::exit_code`].
    pub fn exit_code(&self) -> i32 {
        self.outcome.exit_code
    }

    /// Why it ended.
    pub fn end_reason(&self) -> EndReason {
        self.outcome.end_reason
    }

    /// Whether the command exited by itself, with status zero.
    pub fn success(&self) -> bool {
        self.outcome.success()
    }

    pub(crate) fn from_wire(response: pb::RunResponse) -> Result<Self> {
        let result = present(response.result, "a run's result is missing")?;
        Ok(Self {
            outcome: Outcome::from_wire(result)?,
            stdout: Captured::from_wire(response.stdout.unwrap_or_default()),
            stderr: Captured::from_wire(response.stderr.unwrap_or_default()),
        })
    }
}

impl Outcome {
    /// Whether the command exited by itself, with status zero.
    pub fn success(&self) -> bool {
        self.end_reason == EndReason::Exited && self.exit_code == 0
    }

    pub(crate) fn from_wire(result: pb::RunResult) -> Result<Self> {
        let disk_full = result.disk_full().filter_map(DiskFullPlace::from_wire);
        Ok(Self {
            disk_full: disk_full.collect(),
            end_reason: EndReason::from_wire(result.end_reason())?,
            duration: result.duration.map(duration).transpose()?,
            cpu_time: result.cpu_time.map(duration).transpose()?,
            run_id: result.run_id,
            exit_code: result.exit_code,
            signal: result.signal,
            wait_status: result.wait_status,
            left_running: result.left_running,
            peak_memory_bytes: result.peak_memory_bytes,
            oom_kills: result.oom_kills,
            message: result.message,
            stdout_bytes: result.stdout_bytes,
            stderr_bytes: result.stderr_bytes,
        })
    }
}

impl DiskFullPlace {
    /// A place that this client does not know is left out: the others are no less true.
    fn from_wire(place: pb::DiskFullPlace) -> Option<Self> {
        match place {
            pb::DiskFullPlace::Root => Some(Self::Root),
            pb::DiskFullPlace::RootInodes => Some(Self::RootInodes),
            pb::DiskFullPlace::Shm => Some(Self::Shm),
            pb::DiskFullPlace::Unspecified => None,
        }
    }

    /// Its name in the API, e.g. `ROOT_INODES`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Root => "ROOT",
            Self::RootInodes => "ROOT_INODES",
            Self::Shm => "SHM",
        }
    }
}

impl EndReason {
    fn from_wire(reason: pb::EndReason) -> Result<Self> {
        Ok(match reason {
            pb::EndReason::Exited => Self::Exited,
            pb::EndReason::Signaled => Self::Signaled,
            pb::EndReason::TimedOut => Self::TimedOut,
            pb::EndReason::OomKilled => Self::OomKilled,
            pb::EndReason::Cancelled => Self::Cancelled,
            pb::EndReason::SandboxStopped => Self::SandboxStopped,
            pb::EndReason::Lost => Self::Lost,
            pb::EndReason::Unspecified => {
                return Err(Error::Protocol {
                    what: "a run's end reason is unknown",
                });
            }
        })
    }

    /// Its name in the API, e.g. `TIMED_OUT`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exited => "EXITED",
            Self::Signaled => "SIGNALED",
            Self::TimedOut => "TIMED_OUT",
            Self::OomKilled => "OOM_KILLED",
            Self::Cancelled => "CANCELLED",
            Self::SandboxStopped => "SANDBOX_STOPPED",
            Self::Lost => "LOST",
        }
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
