//! A command to be started, and the message that asks PID 1 for it.

use std::os::fd::OwnedFd;
use std::time::Duration;

use lodge_holder::protocol::Fds;
use lodge_kernel::cgroup::RunFds;
use lodge_proto::holder::{self as wire, ExecSpec, FdRole};

use super::error::HolderError;
use super::memfd;
use crate::sandbox::id::RunId;

/// Whether the command's end kills what it left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillOnExit {
    /// Survivors live on.
    No,
    /// The run's whole leaf is killed: it has secrets.
    Yes,
}

/// A command to be started. It has no `Debug`: the script may hold anything.
pub struct Spawn {
    /// The run.
    pub run: RunId,
    /// How long it may run; `None` means no limit.
    pub timeout: Option<Duration>,
    /// From SIGTERM to the kill of the leaf.
    pub grace: Duration,
    /// What happens to survivors.
    pub kill_on_exit: KillOnExit,
    /// The run's group.
    pub leaf: RunFds,
    /// What to execute. Wiped once it is on its way.
    pub spec: ExecSpec,
    /// The script of a shell-form spec without arguments, longer than [`super::SCRIPT_ARGUMENT_MAX`].
    pub script: Option<Vec<u8>>,
    /// The command's standard input; `None` means /dev/null.
    pub stdin: Option<OwnedFd>,
    /// The command's standard output.
    pub stdout: OwnedFd,
    /// The command's standard error.
    pub stderr: OwnedFd,
    /// What the holder keeps for the next daemon: read ends, spools, secrets.
    pub kept: Vec<(FdRole, OwnedFd)>,
}

pub(super) fn encode(spawn: Spawn) -> Result<(wire::Spawn, Fds), HolderError> {
    let mut fds = Fds::default();
    fds.push(FdRole::Leaf, spawn.leaf.leaf);
    fds.push(FdRole::LeafKill, spawn.leaf.kill);
    spawn
        .leaf
        .v1_tasks
        .into_iter()
        .for_each(|fd| fds.push(FdRole::V1TasksLeaf, fd));
    fds.push(FdRole::ExecSpec, memfd::spec(spawn.spec)?);
    if let Some(text) = spawn.script {
        fds.push(FdRole::Script, memfd::script(&text)?);
    }
    if let Some(stdin) = spawn.stdin {
        fds.push(FdRole::Stdin, stdin);
    }
    fds.push(FdRole::Stdout, spawn.stdout);
    fds.push(FdRole::Stderr, spawn.stderr);
    spawn
        .kept
        .into_iter()
        .for_each(|(role, fd)| fds.push(role, fd));
    let message = wire::Spawn {
        run_id: spawn.run.to_string(),
        // A timeout below a millisecond is one, not none.
        timeout_ms: spawn.timeout.map_or(0, |timeout| millis(timeout).max(1)),
        grace_ms: millis(spawn.grace),
        kill_on_exit: spawn.kill_on_exit == KillOnExit::Yes,
    };
    Ok((message, fds))
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
