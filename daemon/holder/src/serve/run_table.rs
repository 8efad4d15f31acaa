//! The runs of this sandbox: those that live, and those whose end the daemon has not yet said to have recorded.

use std::os::fd::OwnedFd;

use lodge_kernel::sys::clone::SingleThreaded;
use lodge_kernel::sys::wait::Ended;
use lodge_proto::holder::{Spawn, from_holder};
use nix::errno::Errno;

use super::connection::Connection;
use super::disk::Disk;
use super::run::{Cause, Run};
use super::{RunSettings, clock};
use crate::command;
use crate::protocol::{Fds, PacketError, StepError};

/// Runs that are known at once. The daemon's own bound is lower; this one keeps the table from ever growing.
const MAX_RUNS: usize = 1024;

/// All runs, and since when they have been frozen.
pub(super) struct RunTable {
    pub(super) runs: Vec<Run>,
    pub(super) frozen_since_ns: Option<u64>,
}

impl RunTable {
    pub(super) fn new() -> Self {
        Self {
            runs: Vec::with_capacity(MAX_RUNS),
            frozen_since_ns: None,
        }
    }

    fn count(&self) -> u32 {
        u32::try_from(self.runs.len()).unwrap_or(u32::MAX)
    }

    fn find(&mut self, id: &str) -> Option<&mut Run> {
        self.runs.iter_mut().find(|run| run.id == id)
    }

    /// Forks a command.
    pub(super) fn spawn(
        &mut self,
        alone: SingleThreaded,
        settings: &RunSettings,
        tasks: &[OwnedFd],
        spawn: Spawn,
        fds: Fds,
    ) -> Result<(), StepError> {
        let refuse = |object: &str, errno| StepError {
            step: "spawn",
            object: object.to_owned(),
            errno,
        };
        if self.runs.len() >= MAX_RUNS {
            return Err(refuse("run table", Errno::EMFILE));
        }
        if self.find(&spawn.run_id).is_some() {
            return Err(refuse("run id", Errno::EEXIST));
        }
        let run = command::start(alone, settings, tasks, spawn, fds, clock::now_ns())?;
        self.runs.push(run);
        Ok(())
    }

    /// Notes the end of a command; other children are orphans, of which nobody asks.
    pub(super) fn command_ended(&mut self, ended: Ended, now_ns: u64, disk: &Disk) {
        let live = |run: &&mut Run| run.pid == ended.pid && run.exited.is_none();
        if let Some(run) = self.runs.iter_mut().find(live) {
            run.end(ended.status, now_ns, disk.without_room());
        }
    }

    /// Begins to end a run on request.
    pub(super) fn kill(&mut self, id: &str, now_ns: u64, grace_ms: u64) {
        let frozen = self.frozen_since_ns.is_some();
        let Some(run) = self.find(id) else { return };
        if frozen {
            run.end_frozen();
        } else {
            run.begin_ending(Cause::Request, now_ns, grace_ms.saturating_mul(1_000_000));
        }
    }

    /// Lets go of a run that has ended. One that lives is kept: only its own end can make it go.
    pub(super) fn forget(&mut self, id: &str) {
        self.runs.retain(|run| run.id != id || run.exited.is_none());
    }

    /// Tells every end that this connection has not been told.
    pub(super) fn report(&mut self, connection: &mut Connection) -> Result<(), PacketError> {
        for run in self
            .runs
            .iter_mut()
            .filter(|run| run.introduced && !run.reported)
        {
            let Some(exited) = &run.exited else { continue };
            if !connection.send(
                from_holder::Message::Exited(exited.clone()),
                &Fds::default(),
            )? {
                break;
            }
            run.reported = true;
        }
        Ok(())
    }

    /// A new daemon knows of no run; returns how many it will be told of.
    pub(super) fn meet(&mut self) -> u32 {
        for run in &mut self.runs {
            run.introduced = false;
            run.reported = false;
        }
        self.count()
    }

    /// Tells a new daemon of every run that it does not know, with what is kept for it; goes on where it left off once a
    /// full queue has room again.
    pub(super) fn introduce(&mut self, connection: &mut Connection) -> Result<(), PacketError> {
        for run in self.runs.iter_mut().filter(|run| !run.introduced) {
            let state = run.state();
            let ended = state.exited.is_some();
            if !connection.send(from_holder::Message::RunState(state), &run.kept)? {
                break;
            }
            run.introduced = true;
            run.reported = ended;
        }
        Ok(())
    }
}
