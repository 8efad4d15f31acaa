//! Runs that an earlier daemon started: their logs go on at their length, and their ends are told like any other.
//!
//! Logs and empty groups of runs that nobody knows any more are removed. What the holder says is compared with what the
//! state directory has. A run that cannot be taken over is left to its holder, which keeps its deadline; its result is
//! lost, and the log says so.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use lodge_holder::protocol::Fds;
use lodge_kernel::cgroup::{Removed, RunLeaf};
use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};

use super::engine::Engine;
use super::environment::Secret;
use super::log::{BUDGET, Stream, StreamLog};
use super::mask::Patterns;
use super::output::{Pump, Sink};
use super::plumbing::roles;
use super::run::{Group, Parts, Run};
use super::secrets_fd::{self, Kept};
use super::spec::OUTPUT_DEFAULT_BYTES;
use super::spool::Spool;
use super::supervise::{PidsLimit, Places, Supervised};
use crate::error::{Error, Result};
use crate::holder::{FdRole, KnownRun};
use crate::sandbox::id::RunId;
use crate::sandbox::{Handle, Live};

/// What became of a run that a holder told of.
enum Found {
    /// It goes on.
    Unsettled(Box<Supervised>),
    /// The earlier daemon had done everything but tell the holder.
    Settled(RunId),
}

impl Engine {
    /// Takes over the runs that a sandbox's holder told of. Blocks: for a thread of the runtime that may.
    pub fn adopt(&self, handle: &Handle, live: &Live, known: Vec<KnownRun>) {
        let keep: HashSet<&str> = known.iter().map(|one| one.state.run_id.as_str()).collect();
        remove_unknown_groups(live, &keep);
        // Listed now, removed in the background: a run that is started meanwhile is not on the list.
        let unknown = unknown_logs(&live.runs_dir, &keep);
        tokio::task::spawn_blocking(move || unknown.iter().for_each(|dir| remove_log(dir)));
        for one in known {
            let name: String = one.state.run_id.chars().take(32).collect();
            match self.adopt_one(handle, live, one) {
                Ok(Found::Unsettled(task)) => supervise(*task),
                Ok(Found::Settled(id)) => forget(live, id),
                Err(error) => {
                    tracing::error!(run = name, error = %error.chain(), "run not taken over");
                }
            }
        }
    }

    fn adopt_one(&self, handle: &Handle, live: &Live, known: KnownRun) -> Result<Found> {
        let runs = handle.runs();
        let KnownRun {
            state,
            mut fds,
            watch,
        } = known;
        let id = RunId::parse(&state.run_id)?;
        if runs.get(&id).is_ok() {
            return Err(unusable("its id", twice()));
        }
        let has_ended = state.exited.is_some();
        let leaf = match live.cgroup.open_run(id.as_str()) {
            Ok(leaf) => leaf,
            Err(error) if has_ended && error.errno() == Some(Errno::ENOENT) => {
                return Ok(Found::Settled(id));
            }
            Err(error) => return Err(unusable("its cgroup", error)),
        };
        let dir = live.runs_dir.join(id.as_str());
        let secrets = fds.take(FdRole::Secrets);
        let values = match secrets.as_ref().map(kept_secrets).transpose()? {
            // Its processes are gone and its output is whole: what may still come is of others, and could not be masked.
            Some(Kept::Wiped) if has_ended => return settle(id, &leaf),
            Some(Kept::Wiped) => return Err(unusable("its secrets", missing())),
            Some(Kept::Secrets(values)) => Some(values),
            None => None,
        };
        let places = Places {
            // One that has ended takes no place: there may be more of them than of live ones.
            _live: if has_ended {
                None
            } else {
                Some(self.reserve(runs)?)
            },
            _in_use: (!has_ended).then(|| handle.use_now()),
            _secrets: self.reserve_secrets(values.as_deref().unwrap_or_default())?,
        };
        let patterns = values.as_deref().map(patterns).transpose()?;

        let (stdout, stdout_pump) = outlet(&dir, Stream::Stdout, &mut fds, patterns.as_ref())?;
        let (stderr, stderr_pump) = outlet(&dir, Stream::Stderr, &mut fds, patterns.as_ref())?;

        let age = age(state.started_ns);
        let group = Group {
            holder: live.holder.clone(),
            leaf: Arc::new(leaf),
        };
        let run = Run::new(Parts {
            id,
            started_at: SystemTime::now() - age,
            output_bytes: OUTPUT_DEFAULT_BYTES,
            dir,
            stdout,
            stderr,
            group: group.clone(),
        });
        runs.insert(run.clone());
        Ok(Found::Unsettled(Box::new(Supervised {
            run,
            runs: runs.clone(),
            group,
            watch,
            pumps: [stdout_pump, stderr_pump],
            secrets,
            patterns,
            pids: PidsLimit::of(live),
            started: Instant::now().checked_sub(age).unwrap_or_else(Instant::now),
            places,
        })))
    }
}

/// One stream, to be pumped on from where the earlier daemon left it.
fn outlet(
    dir: &Path,
    stream: Stream,
    fds: &mut Fds,
    patterns: Option<&Arc<Patterns>>,
) -> Result<(Arc<StreamLog>, Pump)> {
    let (read, spool) = roles(stream);
    let read = fds
        .take(read)
        .ok_or_else(|| unusable("its pipes", missing()))?;
    let log = StreamLog::reopen(dir, stream, BUDGET).map_err(|e| unusable("its logs", e))?;
    let log = Arc::new(log);
    let sink = match patterns {
        None => Sink::Plain(Arc::clone(&log)),
        Some(patterns) => {
            let file = fds
                .take(spool)
                .ok_or_else(|| unusable("its spools", missing()))?;
            let spool = Spool::resume(file, Arc::clone(&log), Arc::clone(patterns));
            Sink::Masked(Box::new(spool.map_err(|e| unusable("its spools", e))?))
        }
    };
    let pump = Pump::new(read, Arc::clone(&log), sink).map_err(|e| unusable("its pipes", e))?;
    Ok((log, pump))
}

/// Sees an adopted run to its end. Who called for it went with the earlier daemon: the log is where its end is told.
fn supervise(task: Supervised) {
    let run = task.run.clone();
    tokio::spawn(task.supervise());
    tokio::spawn(async move {
        if let Ok(result) = run.end().await {
            tracing::info!(
                run = %run.id(), reason = ?result.verdict.reason, exit_code = result.verdict.exit_code,
                "run of an earlier daemon ended"
            );
        }
    });
}

/// Lets the holder let go of a run, as the earlier daemon would have; its log goes with it, as that of any settled run
/// does at a restart.
fn forget(live: &Live, id: RunId) {
    let dir = live.runs_dir.join(id.as_str());
    if dir.exists() {
        remove_log(&dir);
    }
    let holder = live.holder.clone();
    tokio::spawn(async move {
        if let Err(error) = holder.forget(&id).await {
            tracing::warn!(run = %id, error = &error as &dyn std::error::Error, "run not forgotten");
        }
    });
}

fn settle(id: RunId, leaf: &RunLeaf) -> Result<Found> {
    match leaf.remove() {
        Ok(Removed::Removed) => Ok(Found::Settled(id)),
        Ok(Removed::StillPopulated) => Err(unusable("its secrets", missing())),
        Err(error) => Err(unusable("its cgroup", error)),
    }
}

fn kept_secrets(secrets: &OwnedFd) -> Result<Kept> {
    let read = secrets.try_clone().and_then(secrets_fd::read);
    read.map_err(|e| unusable("its secrets", e))
}

fn patterns(secrets: &[Secret]) -> Result<Arc<Patterns>> {
    Patterns::new(secrets)
        .map(Arc::new)
        .map_err(|e| unusable("its secrets", e))
}

/// Removes the groups of runs that an earlier daemon made and did not get to start. One with processes stays.
fn remove_unknown_groups(live: &Live, keep: &HashSet<&str>) {
    let groups = live.cgroup.runs().unwrap_or_default();
    for name in groups.iter().filter(|name| !keep.contains(name.as_str())) {
        let removed = live.cgroup.open_run(name).and_then(|leaf| leaf.remove());
        if !matches!(removed, Ok(Removed::Removed)) {
            tracing::warn!(run = name, ?removed, "group of an unknown run stays");
        }
    }
}

/// The logs of all runs but `keep`: their results are gone, so nothing leads a caller to them.
fn unknown_logs(runs_dir: &Path, keep: &HashSet<&str>) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(runs_dir).into_iter().flatten().flatten();
    let unknown = entries.filter(|e| {
        !e.file_name()
            .to_str()
            .is_some_and(|name| keep.contains(name))
    });
    unknown.map(|entry| entry.path()).collect()
}

fn remove_log(dir: &Path) {
    if let Err(error) = std::fs::remove_dir_all(dir) {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "logs of an unknown run not removed"
        );
    }
}

/// How long ago a run was started, by the clock that the holder and we share.
fn age(started_ns: u64) -> Duration {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
    now.saturating_sub(Duration::from_nanos(started_ns))
}

fn twice() -> io::Error {
    io::Error::new(io::ErrorKind::AlreadyExists, "the holder told of it twice")
}

fn missing() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the holder did not keep it")
}

fn unusable(what: &str, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::internal("RUN_NOT_ADOPTED", format!("{what} cannot be used"), cause)
}
