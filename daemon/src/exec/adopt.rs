//! Runs that an earlier daemon started: their logs go on at their length, and their ends are told like any other.
//!
//! Logs of runs that nobody knows any more are removed. What the holder says is compared with what the state directory has. A run that cannot be taken over is left to its
//! holder, which keeps its deadline; its result is lost, and the log says so.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use nix::time::{ClockId, clock_gettime};

use super::engine::Engine;
use super::log::{BUDGET, Stream, StreamLog};
use super::mask::Patterns;
use super::output::{Pump, Sink};
use super::plumbing::roles;
use super::run::{Group, Parts, Run};
use super::secrets_fd;
use super::spec::OUTPUT_DEFAULT_BYTES;
use super::spool::Spool;
use super::supervise::{PidsLimit, Supervised};
use super::table::RunTable;
use crate::error::{Error, Result};
use crate::holder::KnownRun;
use crate::sandbox::Live;
use crate::sandbox::id::RunId;

impl Engine {
    /// Takes over the runs that a sandbox's holder told of. Called while a daemon starts; blocks for a few file calls.
    pub fn adopt(&self, live: &Live, runs: &RunTable, known: Vec<KnownRun>) {
        let keep: HashSet<&str> = known.iter().map(|one| one.state.run_id.as_str()).collect();
        // Listed now, removed in the background: a run that is started meanwhile is not on the list.
        let unknown = unknown_logs(&live.runs_dir, &keep);
        tokio::task::spawn_blocking(move || unknown.iter().for_each(|dir| remove_log(dir)));
        for one in known {
            let name: String = one.state.run_id.chars().take(32).collect();
            match self.adopt_one(live, runs, one) {
                Ok(task) => drop(tokio::spawn(task.supervise())),
                Err(error) => {
                    tracing::error!(run = name, error = %error.chain(), "run not taken over");
                }
            }
        }
    }

    fn adopt_one(&self, live: &Live, runs: &RunTable, known: KnownRun) -> Result<Supervised> {
        let KnownRun {
            state,
            mut fds,
            watch,
        } = known;
        let id = RunId::parse(&state.run_id)?;
        let places = self.reserve(runs)?;
        let leaf = live
            .cgroup
            .open_run(id.as_str())
            .map_err(|e| unusable("its cgroup", e))?;
        let dir = live.runs_dir.join(id.as_str());
        let secrets = fds.take(crate::holder::FdRole::Secrets);
        let patterns = secrets.as_ref().map(patterns).transpose()?;

        let mut outlet = |stream| {
            let (read, spool) = roles(stream);
            let read = fds
                .take(read)
                .ok_or_else(|| unusable("its pipes", missing()))?;
            let log =
                StreamLog::reopen(&dir, stream, BUDGET).map_err(|e| unusable("its logs", e))?;
            let log = Arc::new(log);
            let sink = match &patterns {
                None => Sink::Plain(Arc::clone(&log)),
                Some(patterns) => {
                    let file = fds
                        .take(spool)
                        .ok_or_else(|| unusable("its spools", missing()))?;
                    let spool = Spool::resume(file, Arc::clone(&log), Arc::clone(patterns));
                    Sink::Masked(Box::new(spool.map_err(|e| unusable("its spools", e))?))
                }
            };
            let pump =
                Pump::new(read, Arc::clone(&log), sink).map_err(|e| unusable("its pipes", e))?;
            Ok::<_, Error>((log, pump))
        };
        let (stdout, stdout_pump) = outlet(Stream::Stdout)?;
        let (stderr, stderr_pump) = outlet(Stream::Stderr)?;

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
        Ok(Supervised {
            run,
            runs: runs.clone(),
            group,
            watch,
            pumps: [stdout_pump, stderr_pump],
            secrets,
            pids: PidsLimit::of(live),
            started: Instant::now().checked_sub(age).unwrap_or_else(Instant::now),
            places,
        })
    }
}

fn patterns(secrets: &OwnedFd) -> Result<Arc<Patterns>> {
    let read = secrets
        .try_clone()
        .and_then(secrets_fd::read)
        .map_err(|e| unusable("its secrets", e))?;
    Patterns::new(&read)
        .map(Arc::new)
        .map_err(|e| unusable("its secrets", e))
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

fn missing() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the holder did not keep it")
}

fn unusable(what: &str, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::internal("RUN_NOT_ADOPTED", format!("{what} cannot be used"), cause)
}
