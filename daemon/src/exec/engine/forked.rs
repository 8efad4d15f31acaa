//! The last steps of a start: what PID 1 is told, its answer, and the task that looks after the run from there on.
//!
//! Nothing here fails once PID 1 has forked.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{NewLeaf, Origin, Pipes, Started, Wiped, kill_on_exit, no_leaf, not_asked};
use crate::error::Result;
use crate::exec::entry::Begun;
use crate::exec::log::StreamLog;
use crate::exec::mask::Patterns;
use crate::exec::output::Pump;
use crate::exec::run::{GRACE, Group, Parts, Run};
use crate::exec::stdin::StdinPipe;
use crate::exec::supervise::{Ending, PidsLimit, Places, Supervised};
use crate::exec::table::RunTable;
use crate::fault;
use crate::holder::{Holder, RunWatch, Spawn};
use crate::sandbox::{Disk, Live};

/// What PID 1 is told, and what stays here.
pub(super) fn split(
    begun: &Begun,
    timeout: Option<Duration>,
    leaf: &NewLeaf,
    (exec, script): (Wiped, Option<Vec<u8>>),
    pipes: Pipes,
) -> Result<(Spawn, Ours)> {
    let Pipes {
        input,
        stdout,
        stderr,
        kept,
        secrets,
    } = pipes;
    let spawn = Spawn {
        run: begun.run.clone(),
        timeout,
        grace: GRACE,
        kill_on_exit: kill_on_exit(secrets.as_ref()),
        leaf: leaf.0.spawn_fds().map_err(no_leaf)?,
        spec: exec.take(),
        script,
        stdin: input.theirs,
        stdout: stdout.theirs,
        stderr: stderr.theirs,
        kept,
    };
    let ours = Ours {
        stdin: input.ours,
        stdout: (stdout.log, stdout.pump),
        stderr: (stderr.log, stderr.pump),
        secrets,
    };
    Ok((spawn, ours))
}

/// Has PID 1 fork it.
pub(super) async fn ask(live: &Live, spawn: Spawn) -> Result<RunWatch> {
    fault::point("run.ask holder")?;
    let watch = live.holder.spawn(spawn).await.map_err(not_asked)?;
    // It runs: from here on nothing fails any more, but the daemon may die.
    let _ = fault::point("run.ask holder.done");
    Ok(watch)
}

/// The daemon's ends of a run's pipes.
pub(super) struct Ours {
    stdin: Option<StdinPipe>,
    stdout: (Arc<StreamLog>, Pump),
    stderr: (Arc<StreamLog>, Pump),
    secrets: Option<OwnedFd>,
}

/// A run that PID 1 has forked, and nobody looks after yet.
pub(super) struct Forked {
    pub(super) begun: Begun,
    pub(super) leaf: NewLeaf,
    pub(super) holder: Holder,
    pub(super) watch: RunWatch,
    pub(super) ours: Ours,
    pub(super) patterns: Option<Arc<Patterns>>,
    pub(super) pids: PidsLimit,
    pub(super) disk: Disk,
    pub(super) started: Instant,
    pub(super) places: Places,
}

impl Forked {
    /// Makes it known, and looks after it from here on.
    pub(super) fn supervise(self, runs: &RunTable) -> Started {
        let Ours {
            stdin,
            stdout: (stdout, out_pump),
            stderr: (stderr, err_pump),
            secrets,
        } = self.ours;
        let group = Group {
            holder: self.holder,
            leaf: self.leaf.keep(),
        };
        let run = Run::new(Parts {
            begun: self.begun,
            stdout,
            stderr,
            group: Some(group.clone()),
        });
        runs.insert(run.clone());
        // Pinned before its task is there, which may see it to its end at once.
        let result = Started::new(run.clone(), stdin, Origin::ThisCall);
        let task = Supervised {
            run,
            runs: runs.clone(),
            group,
            ending: Ending::ToCome(self.watch),
            pumps: [out_pump, err_pump],
            secrets,
            patterns: self.patterns,
            pids: self.pids,
            disk: self.disk,
            started: self.started,
            places: self.places,
        };
        tokio::spawn(task.supervise());
        result
    }
}
