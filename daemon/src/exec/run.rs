//! One run, as callers hold it: its logs, its end, its processes.
//!
//! A handle is cheap to clone. It starts nothing (see `engine`) and waits for nothing by itself (see `supervise`). One that
//! the history told of is like any other that has ended and left no process.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use lodge_kernel::cgroup::{Removed, RunLeaf};
use nix::errno::Errno;
use tokio::sync::SetOnce;

use super::age::{Stamp, wall_time};
use super::end::RunResult;
use super::entry::{Begun, Ended, Extent};
use super::log::{Stream, StreamLog};
use super::requests::Request;
use super::view::View;
use crate::error::{Error, ErrorKind, Result};
use crate::holder::{Holder, HolderError};
use crate::sandbox::id::RunId;

/// From SIGTERM to the kill of a run's processes.
pub const GRACE: Duration = Duration::from_secs(2);
/// How long killed processes may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(1);
/// First and longest pause between two looks at a group that is about to be empty.
const LOOK_FIRST: Duration = Duration::from_millis(1);
const LOOK_LONGEST: Duration = Duration::from_millis(20);
/// Longest pause between two looks at survivors, which may live for days: a look costs microseconds.
const LOOK_AT_SURVIVORS: Duration = Duration::from_secs(1);

/// One run. Cheap to clone.
#[derive(Clone)]
pub struct Run(Arc<Inner>);

struct Inner {
    begun: Begun,
    stdout: Arc<StreamLog>,
    stderr: Arc<StreamLog>,
    outcome: SetOnce<Outcome>,
    /// There until nothing is left of its processes.
    group: Mutex<Option<Group>>,
    /// What its logs had when its end was written down.
    recorded: OnceLock<[Extent; 2]>,
}

/// What ends a run's processes.
#[derive(Clone)]
pub(super) struct Group {
    pub(super) holder: Holder,
    pub(super) leaf: Arc<RunLeaf>,
}

/// How it came out.
#[derive(Debug)]
pub(super) enum Outcome {
    Ended(Arc<RunResult>, Stamp),
    /// PID 1 could not start it.
    NotStarted(Error),
}

/// Output of an ended run, cut to its budget.
#[derive(Debug, Clone)]
pub struct Output {
    /// Standard output.
    pub stdout: View,
    /// Standard error.
    pub stderr: View,
}

/// A run, as it is told of.
#[derive(Debug, Clone)]
pub struct Account {
    /// Its id.
    pub id: RunId,
    /// The caller's name for it; empty for none.
    pub request_id: String,
    /// The beginning of its command, as one line, values of secrets replaced.
    pub command: String,
    /// When it was started.
    pub started_at: SystemTime,
    /// How and when it ended; `None` while its command lives.
    pub end: Option<(Arc<RunResult>, SystemTime)>,
    /// Its standard output.
    pub stdout: Extent,
    /// Its standard error.
    pub stderr: Extent,
}

/// What a run is made of.
pub(super) struct Parts {
    pub(super) begun: Begun,
    pub(super) stdout: Arc<StreamLog>,
    pub(super) stderr: Arc<StreamLog>,
    /// `None` where nothing is left of its processes.
    pub(super) group: Option<Group>,
}

impl Run {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts {
            begun,
            stdout,
            stderr,
            group,
        } = parts;
        Self(Arc::new(Inner {
            begun,
            stdout,
            stderr,
            outcome: SetOnce::new(),
            group: Mutex::new(group),
            recorded: OnceLock::new(),
        }))
    }

    /// A run of the history, whose logs are below `runs_dir`. Blocks.
    pub(super) fn recorded(ended: Ended, runs_dir: &Path) -> Self {
        let dir = runs_dir.join(ended.begun.run.as_str());
        let at_rest = |stream, extent| Arc::new(StreamLog::at_rest(&dir, stream, extent));
        let run = Self::new(Parts {
            stdout: at_rest(Stream::Stdout, ended.stdout),
            stderr: at_rest(Stream::Stderr, ended.stderr),
            begun: ended.begun,
            group: None,
        });
        run.conclude_at(Arc::new(ended.result), ended.at);
        run
    }

    /// Its id.
    pub fn id(&self) -> &RunId {
        &self.0.begun.run
    }

    /// When it was started.
    pub fn started_at(&self) -> SystemTime {
        wall_time(self.0.begun.started_ms)
    }

    /// When it was started: milliseconds since 1970, UTC.
    pub fn started_at_ms(&self) -> u64 {
        self.0.begun.started_ms
    }

    /// What is known of it from its start on.
    pub(super) fn begun(&self) -> Begun {
        self.0.begun.clone()
    }

    /// The call that asked for it, if that had a name.
    pub(super) fn request(&self) -> Option<&Request> {
        self.0.begun.request.as_ref()
    }

    /// It as it is told of.
    pub fn account(&self) -> Account {
        let begun = &self.0.begun;
        let [stdout, stderr] = self.extents();
        let end = match self.0.outcome.get() {
            Some(Outcome::Ended(result, at)) => Some((Arc::clone(result), at.wall())),
            Some(Outcome::NotStarted(_)) | None => None,
        };
        Account {
            id: begun.run.clone(),
            request_id: self
                .request()
                .map(|request| request.id.clone())
                .unwrap_or_default(),
            command: begun.command.clone(),
            started_at: self.started_at(),
            end,
            stdout,
            stderr,
        }
    }

    /// What there is of its logs: of standard output, then of standard error.
    pub(super) fn extents(&self) -> [Extent; 2] {
        [self.0.stdout.extent(), self.0.stderr.extent()]
    }

    /// What is to be written down of its end; `None` if it has none.
    pub(super) fn to_record(&self) -> Option<Ended> {
        let Some(Outcome::Ended(result, at)) = self.0.outcome.get() else {
            return None;
        };
        let [stdout, stderr] = self.extents();
        // What is written a second time has all that will ever be in it.
        let _ = self.0.recorded.set([stdout, stderr]);
        Some(Ended {
            begun: self.begun(),
            at: *at,
            result: RunResult::clone(result),
            stdout,
            stderr,
        })
    }

    /// Whether its survivors wrote more than was written down.
    pub(super) fn has_written_more(&self) -> bool {
        self.0
            .recorded
            .get()
            .is_some_and(|recorded| *recorded != self.extents())
    }

    /// Whether its command still lives.
    pub fn is_live(&self) -> bool {
        !self.0.outcome.initialized()
    }

    /// The log of one of its streams.
    pub fn log(&self, stream: Stream) -> &Arc<StreamLog> {
        match stream {
            Stream::Stdout => &self.0.stdout,
            Stream::Stderr => &self.0.stderr,
        }
    }

    /// Where its output ends: by its result, or where it is now while its command lives.
    pub fn output_end(&self, stream: Stream) -> u64 {
        self.result_end(stream)
            .unwrap_or_else(|| self.log(stream).len())
    }

    /// Where its output ends by its result; `None` while its command lives.
    pub(super) fn result_end(&self, stream: Stream) -> Option<u64> {
        match (self.0.outcome.get(), stream) {
            (Some(Outcome::Ended(result, _)), Stream::Stdout) => Some(result.stdout_bytes),
            (Some(Outcome::Ended(result, _)), Stream::Stderr) => Some(result.stderr_bytes),
            // The result may not be told yet and its count be fixed already.
            _ => self.log(stream).end_of_command(),
        }
    }

    /// Waits for its end. An error means that it was never started, or that PID 1, which alone sees its end, does not
    /// answer: then it may be going on.
    pub async fn end(&self) -> Result<Arc<RunResult>> {
        let holder = self.group().map(|group| group.holder);
        let silent = async {
            match &holder {
                Some(holder) => holder.fell_silent().await,
                None => std::future::pending().await,
            }
        };
        let outcome = tokio::select! {
            biased;
            outcome = self.0.outcome.wait() => outcome,
            () = silent => return Err(HolderError::Silent.into()),
        };
        match outcome {
            Outcome::Ended(result, _) => Ok(Arc::clone(result)),
            Outcome::NotStarted(error) => Err(error.replica()),
        }
    }

    /// Its output up to its end, cut to the budget that it was started with.
    pub async fn output(&self, result: &RunResult) -> Result<Output> {
        let budget = self.0.begun.output_bytes;
        let unreadable = |e| Error::internal("LOG_UNREADABLE", "the run's log cannot be read", e);
        let stdout = View::of(&self.0.stdout, result.stdout_bytes, budget)
            .await
            .map_err(unreadable)?;
        let stderr = View::of(&self.0.stderr, result.stderr_bytes, budget)
            .await
            .map_err(unreadable)?;
        Ok(Output { stdout, stderr })
    }

    /// Its processes, as pids of the host.
    pub fn processes(&self) -> Vec<i32> {
        self.group()
            .and_then(|group| group.leaf.processes().ok())
            .unwrap_or_default()
    }

    /// Ends what is left of it if want of memory has hit it. Blocks.
    pub(super) fn end_if_out_of_memory(&self) {
        let ended = self
            .group()
            .map_or(Ok(()), |group| group.leaf.end_if_out_of_memory());
        if let Err(error) = ended {
            tracing::warn!(run = %self.id(), error = &error as &dyn std::error::Error, "run's group not killed");
        }
    }

    /// Begins to end it, for a caller who went away. Does not wait.
    pub fn cancel(&self) {
        let Some(group) = self.group() else { return };
        let id = self.id().clone();
        tokio::spawn(async move {
            if let Err(error) = group.holder.kill_run(&id, GRACE).await {
                tracing::warn!(run = %id, error = &error as &dyn std::error::Error, "run not cancelled");
            }
        });
    }

    /// Ends all its processes: SIGTERM, two seconds, SIGKILL. Says how many were ended; waits until they are gone.
    pub async fn kill(&self) -> Result<u32> {
        let Some(group) = self.group() else {
            return Ok(0);
        };
        let before = self.processes().len();
        if before == 0 {
            return Ok(0);
        }
        match group.holder.kill_run(self.id(), GRACE).await {
            // Who ends the sandbox ends them, too.
            Ok(()) | Err(HolderError::Gone) => {}
            Err(error) => {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    "HOLDER_UNREACHABLE",
                    "PID 1 of the sandbox does not answer",
                )
                .caused_by(error));
            }
        }
        let left = group.emptied(GRACE).await;
        if self.is_live() {
            tokio::select! {
                _ = self.0.outcome.wait() => {}
                // They are gone, whatever PID 1 will say of it later.
                () = group.holder.fell_silent() => {}
            }
        }
        Ok(u32::try_from(before.saturating_sub(left)).unwrap_or(u32::MAX))
    }

    /// Waits until all that it wrote is in its logs, which is when its pipes have no writer any more.
    pub(super) async fn drained(&self) {
        self.0.stdout.sealed().await;
        self.0.stderr.sealed().await;
    }

    /// Whether its command has ended and nothing is left of its processes and pipes.
    pub(super) fn is_settled(&self) -> bool {
        !self.is_live() && self.group().is_none()
    }

    pub(super) fn conclude(&self, outcome: Outcome) {
        // Only its own task concludes a run, once.
        let _ = self.0.outcome.set(outcome);
    }

    /// Concludes it with an end that was told at `at`.
    pub(super) fn conclude_at(&self, result: Arc<RunResult>, at: Stamp) {
        self.conclude(Outcome::Ended(result, at));
    }

    /// Lets go of its group and of what the holder keeps for it, if its processes and pipes are gone.
    pub(super) async fn try_settle(&self) {
        let pumping = !(self.0.stdout.is_sealed() && self.0.stderr.is_sealed());
        let Some(group) = self.group().filter(|_| !pumping && !self.is_live()) else {
            return;
        };
        match group.leaf.remove() {
            Ok(Removed::StillPopulated) => return,
            Ok(Removed::Removed) => {}
            Err(error) => {
                tracing::warn!(run = %self.id(), error = &error as &dyn std::error::Error, "run's group not removed");
            }
        }
        // The holder is gone where the sandbox was stopped: then there is nothing to forget.
        let _ = group.holder.forget(self.id()).await;
        *self.lock() = None;
    }

    fn group(&self) -> Option<Group> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Group>> {
        self.0.group.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Group {
    /// Waits until its processes are gone, which PID 1 sees to within `grace`; then kills what is left. Says how many
    /// are left after all.
    pub(super) async fn emptied(&self, grace: Duration) -> usize {
        if self.empty_within(grace + GONE_WITHIN).await == 0 {
            return 0;
        }
        if let Err(error) = self.leaf.kill() {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "run's group not killed"
            );
        }
        self.empty_within(GONE_WITHIN).await
    }

    /// Waits until none of its processes is left, however long that takes.
    pub(super) async fn deserted(&self) {
        let mut pause = LOOK_FIRST;
        while self.may_have_processes() {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LOOK_AT_SURVIVORS);
        }
    }

    /// A group that cannot be looked at, say for want of descriptors, may have some; one that is gone has none.
    fn may_have_processes(&self) -> bool {
        match self.leaf.processes() {
            Ok(pids) => !pids.is_empty(),
            Err(error) => !matches!(error.errno(), Some(Errno::ENOENT | Errno::ENODEV)),
        }
    }

    async fn empty_within(&self, limit: Duration) -> usize {
        let until = Instant::now() + limit;
        let mut pause = LOOK_FIRST;
        loop {
            // A group that cannot be read any more is gone.
            let left = self.leaf.processes().map_or(0, |pids| pids.len());
            if left == 0 || Instant::now() >= until {
                return left;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LOOK_LONGEST);
        }
    }
}
