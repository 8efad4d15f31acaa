//! Runs that an earlier daemon started: their logs go on at their length, and their ends are told like any other.
//!
//! What the holder says is compared with what the state directory has. A run whose end was written down ended like that,
//! whatever the holder says. One that it was to start and never heard of was not started; one that wrote something and of
//! which nobody knows more is lost. A run that cannot be taken over is left to its holder, which keeps its deadline.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use lodge_holder::protocol::Fds;
use lodge_kernel::cgroup::{Removed, RunLeaf};
use lodge_proto::holder::RunState;
use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};

use super::age::wall_ms;
use super::engine::Engine;
use super::entry::Begun;
use super::environment::Secret;
use super::log::{BUDGET, Stream, StreamLog};
use super::lost::{self, Leaving};
use super::mask::Patterns;
use super::oom;
use super::output::{Pump, Sink};
use super::plumbing::roles;
use super::run::{Group, Parts, Run};
use super::secrets_fd::{self, Kept};
use super::spec::OUTPUT_DEFAULT_BYTES;
use super::spool::Spool;
use super::supervise::{Ending, PidsLimit, Places, Supervised};
use super::table::RunTable;
use super::turns::Turns;
use crate::error::{Error, Result};
use crate::holder::{FdRole, KnownRun, RunWatch};
use crate::sandbox::id::RunId;
use crate::sandbox::{Handle, Live};

/// What became of a run that a holder told of.
enum Found {
    /// It goes on.
    Unsettled(Box<Supervised>),
    /// Nothing is left of it but what is written down.
    Settled(RunId),
}

impl Engine {
    /// Takes over the runs that a sandbox's holder told of, and says what became of the others. Comes after
    /// [`Engine::recall`]. Blocks: for a thread of the runtime that may.
    pub fn adopt(&self, handle: &Handle, live: &Live, known: Vec<KnownRun>) {
        let keep: HashSet<String> = known.iter().map(|one| one.state.run_id.clone()).collect();
        remove_unknown_groups(live, &keep);
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
        lost::settle_unknown(live, handle.runs(), &keep);
        handle.runs().taken_up();
        oom::watch(live, handle.runs());
    }

    fn adopt_one(&self, handle: &Handle, live: &Live, known: KnownRun) -> Result<Found> {
        let runs = handle.runs();
        let KnownRun {
            state,
            mut fds,
            watch,
        } = known;
        let id = RunId::parse(&state.run_id)?;
        if runs.knows(&id) {
            return Err(unusable("its id", twice()));
        }
        let is_written_down = runs.kept(&id).is_some();
        let exited = state.exited.as_ref();
        if is_written_down && exited.is_none() {
            return Err(unusable("its id", ended_already()));
        }
        let leaf = match live.cgroup.open_run(id.as_str()) {
            Ok(leaf) => leaf,
            Err(error) if exited.is_some() && error.errno() == Some(Errno::ENOENT) => {
                record_end(live, runs, &id, &state, None);
                return Ok(Found::Settled(id));
            }
            Err(error) => return Err(unusable("its cgroup", error)),
        };
        let secrets = fds.take(FdRole::Secrets);
        let values = match secrets.as_ref().map(kept_secrets).transpose()? {
            // Its processes are gone and its output is whole: what may still come is of others, and could not be masked.
            Some(Kept::Wiped) if exited.is_some() => {
                record_end(live, runs, &id, &state, Some(&leaf));
                return settle(id, &leaf);
            }
            Some(Kept::Wiped) => return Err(unusable("its secrets", missing())),
            Some(Kept::Secrets(values)) => Some(values),
            None => None,
        };
        let places = Places {
            // One that has ended takes no place: there may be more of them than of live ones.
            _live: if exited.is_some() {
                None
            } else {
                Some(self.reserve_for_adopted(handle)?)
            },
            _in_use: exited.is_none().then(|| handle.use_now()),
            _secrets: self.reserve_secrets(values.as_deref().unwrap_or_default())?,
        };
        let patterns = values.as_deref().map(patterns).transpose()?;

        let taken = TakenOver {
            id,
            started: age(state.started_ns),
            leaf,
            fds,
            watch,
            secrets,
            patterns,
            places,
        };
        taken
            .go_on(live, runs)
            .map(|task| Found::Unsettled(Box::new(task)))
    }
}

/// A run of which all that is needed was found.
struct TakenOver {
    id: RunId,
    /// How long ago it was started.
    started: Duration,
    leaf: RunLeaf,
    fds: Fds,
    watch: RunWatch,
    secrets: Option<OwnedFd>,
    patterns: Option<Arc<Patterns>>,
    places: Places,
}

impl TakenOver {
    /// Takes it into the table. Its task goes on where the earlier daemon's was.
    fn go_on(mut self, live: &Live, runs: &RunTable) -> Result<Supervised> {
        let (id, patterns) = (&self.id, self.patterns.as_ref());
        let dir = live.runs_dir.join(id.as_str());
        let logs = (dir.as_path(), runs.turns());
        let (stdout, stdout_pump) = outlet(logs, Stream::Stdout, &mut self.fds, patterns)?;
        let (stderr, stderr_pump) = outlet(logs, Stream::Stderr, &mut self.fds, patterns)?;
        let group = Group {
            holder: live.holder.clone(),
            leaf: Arc::new(self.leaf),
        };
        let written = runs.record_of(id);
        let begun = match &written {
            Some(ended) => ended.begun.clone(),
            None => begun(runs, id, self.started),
        };
        let run = Run::new(Parts {
            begun,
            stdout,
            stderr,
            group: Some(group.clone()),
        });
        let ending = match written {
            Some(ended) => {
                run.conclude_at(Arc::new(ended.result), ended.at);
                Ending::WrittenDown
            }
            None => Ending::ToCome(self.watch),
        };
        runs.insert(run.clone());
        let now = Instant::now();
        Ok(Supervised {
            run,
            runs: runs.clone(),
            group,
            ending,
            pumps: [stdout_pump, stderr_pump],
            secrets: self.secrets,
            patterns: self.patterns,
            pids: PidsLimit::of(live),
            disk: live.disk.clone(),
            started: now.checked_sub(self.started).unwrap_or(now),
            places: self.places,
        })
    }
}

/// What is known of a run's start: what was written down, or what the holder says.
fn begun(runs: &RunTable, id: &RunId, age: Duration) -> Begun {
    runs.take_open_run(id).unwrap_or_else(|| Begun {
        run: id.clone(),
        request: None,
        command: String::new(),
        started_ms: wall_ms(SystemTime::now() - age),
        output_bytes: OUTPUT_DEFAULT_BYTES,
    })
}

/// Writes down the end of a run that is over and of which the earlier daemon had not written it.
fn record_end(live: &Live, runs: &RunTable, id: &RunId, state: &RunState, leaf: Option<&RunLeaf>) {
    if runs.kept(id).is_some() {
        return;
    }
    let Some(exited) = &state.exited else { return };
    let begun = begun(runs, id, age(state.started_ns));
    let left = Leaving::Told(exited, leaf);
    runs.record_settled(lost::ended(&live.runs_dir, begun, left));
}

/// One stream, to be pumped on from where the earlier daemon left it.
fn outlet(
    (dir, turns): (&Path, &Turns),
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
    let pump = Pump::new(read, Arc::clone(&log), sink, turns);
    let pump = pump.map_err(|e| unusable("its pipes", e))?;
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

/// Lets the holder let go of a run, as the earlier daemon would have.
fn forget(live: &Live, id: RunId) {
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
fn remove_unknown_groups(live: &Live, keep: &HashSet<String>) {
    let groups = live.cgroup.runs().unwrap_or_default();
    for name in groups.iter().filter(|name| !keep.contains(*name)) {
        let removed = live.cgroup.open_run(name).and_then(|leaf| leaf.remove());
        if !matches!(removed, Ok(Removed::Removed)) {
            tracing::warn!(run = name, ?removed, "group of an unknown run stays");
        }
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

fn ended_already() -> io::Error {
    io::Error::new(
        io::ErrorKind::AlreadyExists,
        "its end is written down, and the holder says that it lives",
    )
}

fn missing() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the holder did not keep it")
}

fn unusable(what: &str, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::internal("RUN_NOT_ADOPTED", format!("{what} cannot be used"), cause)
}
