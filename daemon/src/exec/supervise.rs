//! The task of a run: pumps its output, waits for its end, tells the result, and sees to what is left.
//!
//! One task does it all: fewer wake-ups on the way of a short command. It belongs to no caller: a caller that goes
//! away changes nothing.

use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lodge_kernel::cgroup::{SandboxGroup, Usage};
use nix::errno::Errno;
use tokio::sync::OwnedSemaphorePermit;

use super::age::Stamp;
use super::disk_full;
use super::end::{EndReason, EndedBy, Fact, RunResult, verdict};
use super::log::{Stream, StreamLog};
use super::mask::Patterns;
use super::output::{Control, Pump};
use super::run::{GRACE, Group, Outcome, Run};
use super::secrets_fd;
use super::table::{RunTable, Slot};
use crate::error::{Error, ErrorKind};
use crate::holder::{Exited, RunEnd, RunWatch, StepFailure};
use crate::sandbox::quota::Share;
use crate::sandbox::{Disk, Live, Use};
use crate::storage::DiskUsage;

/// How long a result waits for a pipe that survivors hold open, once what the command wrote is in the log.
const DRAIN: Duration = Duration::from_millis(200);
/// How long a run lives before it is written down that it does.
const NOTED_AFTER: Duration = Duration::from_millis(100);
/// Longest name of what could not be executed, in characters, as the command's process cuts it before it is told here.
const OBJECT_MAX: usize = 512;
/// How much of that a message shows.
const OBJECT_SHOWN: usize = 256;

/// A started run and all that its task needs.
pub(super) struct Supervised {
    pub(super) run: Run,
    pub(super) runs: RunTable,
    pub(super) group: Group,
    pub(super) ending: Ending,
    /// Of standard output, then of standard error.
    pub(super) pumps: [Pump; 2],
    /// Its secrets in the holder's memfd, if it has any: then its end takes all its processes with it.
    pub(super) secrets: Option<OwnedFd>,
    /// Of the same secrets.
    pub(super) patterns: Option<Arc<Patterns>>,
    pub(super) pids: PidsLimit,
    pub(super) disk: Disk,
    pub(super) started: Instant,
    pub(super) places: Places,
}

/// Where the end of a run comes from.
pub(super) enum Ending {
    /// PID 1 will tell.
    ToCome(RunWatch),
    /// An earlier daemon wrote it down, and the run says so; only survivors are left.
    WrittenDown,
}

/// What it takes up of the sandbox's and the daemon's bounds; given back at its end.
pub(super) struct Places {
    /// `None` where it had ended before it was adopted.
    pub(super) _live: Option<LivePlaces>,
    /// Keeps the sandbox in use; `None` where it had ended before it was adopted.
    pub(super) _in_use: Option<Use>,
    /// For the bytes of its secrets, if it has any.
    pub(super) _secrets: Option<OwnedSemaphorePermit>,
}

/// Places among the live runs of the sandbox, of the daemon and of the tenant.
pub(super) struct LivePlaces {
    pub(super) _in_sandbox: Slot,
    pub(super) _in_all: OwnedSemaphorePermit,
    pub(super) _of_tenant: Share,
}

/// The sandbox's limit on processes, and how often it had been hit when the run started.
pub(super) struct PidsLimit {
    cgroup: Arc<SandboxGroup>,
    limit: u64,
    hits_before: Option<u64>,
}

impl Supervised {
    /// Sees the run to its end and beyond.
    pub(super) async fn supervise(self) {
        let Self {
            run,
            runs,
            group,
            ending,
            pumps,
            secrets,
            patterns,
            pids,
            disk,
            started,
            places,
        } = self;
        let controls = pumps.each_ref().map(Pump::control);
        let [stdout, stderr] = pumps;
        let pumps = async { tokio::join!(stdout.run(), stderr.run()) };
        tokio::pin!(pumps);
        let mut pumping = Pumping { pumps, open: true };

        let end = match ending {
            Ending::ToCome(watch) => {
                let end = end_noting_that_it_lives(watch, &run, &runs);
                Some(without_secrets(
                    pumping.during(end).await,
                    patterns.as_ref(),
                ))
            }
            Ending::WrittenDown => None,
        };
        controls.iter().for_each(|control| control.command_ended());
        if secrets.is_some() || end.as_ref().is_some_and(takes_all_with_it) {
            pumping.during(group.emptied(GRACE)).await;
        }
        pumping.drain(&controls).await;
        if let Some(secrets) = secrets {
            // Nobody of this run is left. Who else may hold the pipe is of another run, and what is held back for the
            // mask belongs in this result.
            controls.iter().for_each(|control| control.close());
            pumping.run_out().await;
            if let Err(error) = secrets_fd::wipe(&secrets) {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "secrets of a run not wiped"
                );
            }
        }

        let usage = match &end {
            Some(RunEnd::Exited(_)) => disk.usage_beyond_file_system().await,
            // Nobody looked when it ended.
            _ => DiskUsage::default(),
        };
        let outcome = end.map(|end| outcome(&run, end, &group, (&pids, &usage), started));
        // Before anybody is told: who hears of the end must not find the place still taken.
        drop(places);
        if matches!(outcome, Some(Outcome::NotStarted(_))) {
            runs.not_started(&run);
        }
        outcome
            .into_iter()
            .for_each(|outcome| run.conclude(outcome));
        // Who waits for the end is answered first; what follows costs as much as the rest of a short run.
        tokio::task::yield_now().await;

        // Before PID 1 is told to forget it: one of the two always knows how it ended.
        pumping.during(runs.record(&run)).await;
        pumping.outlast(&group, &controls).await;
        runs.let_go_when_settled(&run).await;
    }
}

/// Waits for the end. A run that lives for a while is written down as such: the next daemon then knows more of it than
/// its id. Most runs are shorter than that, and are written down once.
async fn end_noting_that_it_lives(watch: RunWatch, run: &Run, runs: &RunTable) -> RunEnd {
    let end = watch.end();
    tokio::pin!(end);
    if let Ok(end) = tokio::time::timeout(NOTED_AFTER, &mut end).await {
        return end;
    }
    if run.request().is_none() {
        let noted = runs.note_live(run);
        tokio::select! {
            biased;
            end = &mut end => return end,
            () = noted => {}
        }
    }
    end.await
}

/// The pumps of a run, which go on while anything else is waited for.
struct Pumping<'a, F> {
    pumps: Pin<&'a mut F>,
    open: bool,
}

impl<F: Future> Pumping<'_, F> {
    /// Waits for `other`, pumping.
    async fn during<T>(&mut self, other: impl Future<Output = T>) -> T {
        tokio::pin!(other);
        loop {
            tokio::select! {
                biased;
                done = &mut other => return done,
                _ = self.pumps.as_mut(), if self.open => self.open = false,
            }
        }
    }

    /// Pumps what the command had written, and then a little longer if a survivor holds a pipe open.
    async fn drain(&mut self, controls: &[Arc<Control>; 2]) {
        if !self.open {
            return;
        }
        let drained = async {
            controls[0].drained().await;
            controls[1].drained().await;
            tokio::time::sleep(DRAIN).await;
        };
        tokio::select! {
            _ = self.pumps.as_mut() => self.open = false,
            () = drained => {}
        }
    }

    /// Pumps until both pipes are closed or nobody of the run is left. Whoever holds a pipe then is of another run, and
    /// would keep this one's descriptors and its place with PID 1 for as long as it lives.
    async fn outlast(&mut self, group: &Group, controls: &[Arc<Control>; 2]) {
        if !self.open {
            return;
        }
        tokio::select! {
            biased;
            _ = self.pumps.as_mut() => self.open = false,
            () = group.deserted() => {}
        }
        controls.iter().for_each(|control| control.close());
        self.run_out().await;
    }

    /// Pumps until both pipes are closed.
    async fn run_out(&mut self) {
        if self.open {
            self.pumps.as_mut().await;
            self.open = false;
        }
    }
}

/// The end as it may be told: what was to be executed, and where, may have a secret's value in it.
fn without_secrets(mut end: RunEnd, patterns: Option<&Arc<Patterns>>) -> RunEnd {
    let failure = match &mut end {
        RunEnd::Exited(exited) => exited.exec_failure.as_mut(),
        RunEnd::SpawnFailed(failure) => Some(failure),
        RunEnd::Stopped | RunEnd::Lost => None,
    };
    if let (Some(failure), Some(patterns)) = (failure, patterns) {
        failure.object = if failure.object.chars().count() < OBJECT_MAX {
            patterns.in_text(&failure.object)
        } else {
            patterns.in_cut_text(&failure.object)
        };
    }
    end
}

/// Whether every process of the run goes with its command.
fn takes_all_with_it(end: &RunEnd) -> bool {
    match end {
        RunEnd::Exited(exited) => exited.timed_out || exited.killed,
        RunEnd::SpawnFailed(_) => false,
        RunEnd::Stopped | RunEnd::Lost => true,
    }
}

fn outcome(
    run: &Run,
    end: RunEnd,
    group: &Group,
    (pids, usage): (&PidsLimit, &DiskUsage),
    started: Instant,
) -> Outcome {
    let disk_full = match &end {
        RunEnd::Exited(exited) => disk_full::seen(exited, usage),
        // Nobody looked when it ended.
        RunEnd::SpawnFailed(_) | RunEnd::Stopped | RunEnd::Lost => Vec::new(),
    };
    let (fact, duration, failure) = match end {
        RunEnd::SpawnFailed(failure) => return Outcome::NotStarted(not_started(&failure, pids)),
        RunEnd::Exited(exited) => {
            let fact = Fact::Reaped {
                wait_status: exited.wait_status,
                ended_by: ended_by(&exited, group),
            };
            (
                fact,
                Duration::from_nanos(exited.duration_ns),
                exited.exec_failure,
            )
        }
        RunEnd::Stopped => (Fact::Stopped, started.elapsed(), None),
        RunEnd::Lost => (Fact::Lost, started.elapsed(), None),
    };
    let usage = group.leaf.usage();
    let verdict = verdict(fact, usage.oom_kills);
    if verdict.reason == EndReason::OomKilled {
        // Whoever watches may not have got there yet.
        run.end_if_out_of_memory();
    }
    let left_running = match verdict.reason {
        EndReason::OomKilled => 0,
        _ => group.leaf.processes().map_or(0, |pids| pids.len()),
    };
    let (stdout, stderr) = (run.log(Stream::Stdout), run.log(Stream::Stderr));
    let mut notes = Vec::new();
    notes.extend(failure.as_ref().map(not_executed));
    if verdict.exit_code != 0 {
        notes.extend(pids.note());
    }
    notes.extend(oom_note(&usage));
    notes.extend(log_note("stdout", stdout));
    notes.extend(log_note("stderr", stderr));
    let result = Arc::new(RunResult {
        run: run.id().clone(),
        verdict,
        left_running: u32::try_from(left_running).unwrap_or(u32::MAX),
        duration,
        cpu_time: usage.cpu_time,
        peak_memory: usage.peak_memory,
        oom_kills: usage.oom_kills,
        message: notes.join("; "),
        stdout_bytes: stdout.command_ended(),
        stderr_bytes: stderr.command_ended(),
        disk_full,
    });
    Outcome::Ended(result, Stamp::now())
}

fn ended_by(exited: &Exited, group: &Group) -> EndedBy {
    if exited.timed_out {
        EndedBy::Deadline
    } else if exited.killed {
        EndedBy::Caller
    } else if group.holder.is_stopping() {
        EndedBy::Stop
    } else {
        EndedBy::Itself
    }
}

/// Why the program was not executed. Step and object come from inside: bounded and shown, never trusted.
fn not_executed(failure: &StepFailure) -> String {
    let object: String = failure.object.chars().take(OBJECT_SHOWN).collect();
    let step: String = failure.step.chars().take(64).collect();
    match object.split_once(' ') {
        // The image's /etc/passwd or /etc/group lacks it.
        Some((kind @ ("user" | "group"), name))
            if step == "user" && failure.errno == Errno::ENOENT as i32 =>
        {
            format!("no such {kind}: {}", name.escape_debug())
        }
        _ => format!("{step} {object:?}: {}", cause(failure)),
    }
}

fn cause(failure: &StepFailure) -> String {
    match failure.errno {
        0 => "not possible".to_owned(),
        errno => Errno::from_raw(errno).desc().to_lowercase(),
    }
}

/// The error of a run that PID 1 could not fork.
fn not_started(failure: &StepFailure, pids: &PidsLimit) -> Error {
    let what = format!(
        "the command could not be started: {}",
        not_executed(failure)
    );
    if failure.errno == Errno::EMFILE as i32 {
        let error = Error::new(ErrorKind::ResourceExhausted, "TOO_MANY_RUNS", what);
        return error.hint("too many ended runs have processes; kill some of them");
    }
    if failure.errno == Errno::EAGAIN as i32 {
        let error = Error::new(ErrorKind::ResourceExhausted, "PIDS_LIMIT_REACHED", what);
        return error.hint(format!(
            "the sandbox may have {} processes; end some of them",
            pids.limit
        ));
    }
    Error::new(ErrorKind::Internal, "RUN_NOT_STARTED", what)
}

impl PidsLimit {
    /// The limit of a sandbox, as it stands before a run.
    pub(super) fn of(live: &Live) -> Self {
        let hits_before = live.cgroup.pids_limit_hits();
        Self {
            cgroup: Arc::clone(&live.cgroup),
            limit: live.pids_limit.load(Ordering::Relaxed),
            hits_before,
        }
    }

    fn note(&self) -> Option<String> {
        let (before, now) = (self.hits_before?, self.cgroup.pids_limit_hits()?);
        (now > before).then(|| format!("pids limit of {} reached", self.limit))
    }
}

/// Which processes they were the kernel does not tell: a shell that says 137 may have lost a child.
fn oom_note(usage: &Usage) -> Option<String> {
    match usage.oom_kills? {
        0 => None,
        1 => Some("the kernel killed a process of this run for want of memory".to_owned()),
        kills => Some(format!(
            "the kernel killed {kills} processes of this run for want of memory"
        )),
    }
}

fn log_note(stream: &str, log: &StreamLog) -> Option<String> {
    let (from, errno) = log.loss()?;
    Some(format!(
        "{stream} from byte {from} on could not be stored: {}",
        errno.desc().to_lowercase()
    ))
}
