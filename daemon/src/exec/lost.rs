//! Runs of an earlier daemon of which nothing is left but what is written: what they are told to have come to.
//!
//! Nothing is invented: where PID 1 did not say how a command ended, it is lost, or was stopped with its sandbox if that was
//! what the earlier daemon had begun to do.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, SystemTime};

use lodge_kernel::cgroup::RunLeaf;

use super::age::{Stamp, wall_ms};
use super::disk_full;
use super::end::{EndedBy, Fact, RunResult, verdict};
use super::engine::Engine;
use super::entry::{Begun, Ended, Extent};
use super::log::{Stream, StreamLog};
use super::spec::OUTPUT_DEFAULT_BYTES;
use super::table::RunTable;
use crate::holder::Exited;
use crate::sandbox::Live;
use crate::sandbox::id::RunId;

/// How a run left.
pub(super) enum Leaving<'a> {
    /// PID 1 told of its end. Its group, if that is still there.
    Told(&'a Exited, Option<&'a RunLeaf>),
    /// The sandbox was being stopped.
    Stopped,
    /// Nobody knows.
    Lost,
}

impl Engine {
    /// Says what became of the runs of a sandbox in which no process is left. Comes after [`Engine::recall`]. Blocks.
    pub fn settle_dead(&self, runs_dir: &Path, runs: &RunTable) {
        let was_stopping = runs.was_stopping();
        for open in runs.take_open() {
            let leaving = if open.stopping {
                Leaving::Stopped
            } else {
                Leaving::Lost
            };
            record(runs, runs_dir, open.begun, leaving);
        }
        for id in runs.orphans() {
            let leaving = if was_stopping {
                Leaving::Stopped
            } else {
                Leaving::Lost
            };
            record(runs, runs_dir, orphan(runs_dir, id), leaving);
        }
        runs.taken_up();
    }
}

/// Says what became of runs that a living holder does not know. It forgets none before the end is written down: one of which
/// there is only the beginning never came to it. Blocks.
pub(super) fn settle_unknown(live: &Live, runs: &RunTable, told: &HashSet<String>) {
    for open in runs.take_open() {
        let run = open.begun.run.clone();
        if told.contains(run.as_str()) {
            // It could not be taken over, and may be well.
            runs.put_back(open);
        } else if live.runs_dir.join(run.as_str()).exists() {
            record(runs, &live.runs_dir, open.begun, Leaving::Lost);
        } else {
            runs.write_void(run);
        }
    }
    for id in runs.orphans() {
        if !told.contains(id.as_str()) {
            record(
                runs,
                &live.runs_dir,
                orphan(&live.runs_dir, id),
                Leaving::Lost,
            );
        }
    }
}

fn record(runs: &RunTable, runs_dir: &Path, begun: Begun, leaving: Leaving<'_>) {
    let ended = ended(runs_dir, begun, leaving);
    tracing::warn!(run = %ended.begun.run, reason = ?ended.result.verdict.reason, "run of an earlier daemon");
    runs.record_settled(ended);
}

/// What is known of a run that wrote something, and of which nothing was written down.
fn orphan(runs_dir: &Path, id: RunId) -> Begun {
    let metadata = std::fs::metadata(runs_dir.join(id.as_str()));
    let made = metadata
        .and_then(|dir| dir.modified())
        .unwrap_or_else(|_| SystemTime::now());
    Begun {
        run: id,
        request: None,
        command: String::new(),
        started_ms: wall_ms(made),
        output_bytes: OUTPUT_DEFAULT_BYTES,
    }
}

/// The end of a run of which nothing is left, with what its logs have. Blocks.
pub(super) fn ended(runs_dir: &Path, begun: Begun, leaving: Leaving<'_>) -> Ended {
    let dir = runs_dir.join(begun.run.as_str());
    let extent = |stream| StreamLog::at_rest(&dir, stream, Extent::default()).extent();
    let (stdout, stderr) = (extent(Stream::Stdout), extent(Stream::Stderr));
    let disk_full = match &leaving {
        Leaving::Told(exited, _) => disk_full::told(exited),
        Leaving::Stopped | Leaving::Lost => Vec::new(),
    };
    let (fact, duration, leaf, message) = match leaving {
        Leaving::Told(exited, leaf) => {
            let fact = Fact::Reaped {
                wait_status: exited.wait_status,
                ended_by: ended_by(exited),
            };
            // What could not be executed may have a secret in it, and those are gone.
            let failed = exited.exec_failure.is_some();
            let message = if failed {
                "the program was not executed"
            } else {
                ""
            };
            (
                fact,
                Duration::from_nanos(exited.duration_ns),
                leaf,
                message,
            )
        }
        Leaving::Stopped => (Fact::Stopped, Duration::ZERO, None, ""),
        Leaving::Lost => (Fact::Lost, Duration::ZERO, None, ""),
    };
    let usage = leaf.map(RunLeaf::usage);
    let oom_kills = usage.as_ref().and_then(|usage| usage.oom_kills);
    let result = RunResult {
        run: begun.run.clone(),
        verdict: verdict(fact, oom_kills),
        left_running: 0,
        duration,
        cpu_time: usage.as_ref().and_then(|usage| usage.cpu_time),
        peak_memory: usage.as_ref().and_then(|usage| usage.peak_memory),
        oom_kills,
        message: message.to_owned(),
        stdout_bytes: stdout.total,
        stderr_bytes: stderr.total,
        disk_full,
    };
    Ended {
        begun,
        at: Stamp::now(),
        result,
        stdout,
        stderr,
    }
}

fn ended_by(exited: &Exited) -> EndedBy {
    if exited.timed_out {
        EndedBy::Deadline
    } else if exited.killed {
        EndedBy::Caller
    } else {
        EndedBy::Itself
    }
}
