//! The holder's side of a run's start: fork into the run's leaf, keep what the run needs.

use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};

use lodge_kernel::sys::clone::{Forked, SingleThreaded, fork_into};
use lodge_proto::holder::{FdRole, Spawn};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::unistd::pipe2;

use super::exec::{self, Child};
use crate::protocol::{Fds, StepError};
use crate::serve::{Ending, KEPT, Run, RunSettings};

/// Forks the command of a run.
pub(crate) fn start(
    alone: SingleThreaded,
    settings: &RunSettings,
    shared_tasks: &[OwnedFd],
    spawn: Spawn,
    mut fds: Fds,
    now_ns: u64,
) -> Result<Run, StepError> {
    let failed = |step, object: &str| {
        let object = object.to_owned();
        move |errno: Errno| StepError {
            step,
            object,
            errno,
        }
    };
    let mut take = |role, name: &str| {
        fds.take(role)
            .ok_or(Errno::EBADF)
            .map_err(failed("spawn", name))
    };
    let leaf = take(FdRole::Leaf, "leaf")?;
    let leaf_kill = take(FdRole::LeafKill, "cgroup.kill")?;
    let spec = take(FdRole::ExecSpec, "exec spec")?;
    let stdout = take(FdRole::Stdout, "stdout")?;
    let stderr = take(FdRole::Stderr, "stderr")?;
    let (status, status_write) =
        pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).map_err(failed("spawn", "status pipe"))?;
    let child = Child {
        settings,
        shared_tasks,
        leaf_tasks: fds.take_all(FdRole::V1TasksLeaf),
        spec,
        script: fds.take(FdRole::Script),
        stdin: fds.take(FdRole::Stdin),
        stdout,
        stderr,
        status: status_write,
    };
    match fork_into(alone, Some(leaf.as_fd())).map_err(failed("fork", "command"))? {
        Forked::Child => exec::run(child),
        Forked::Parent(pid) => {
            let timeout_ns = spawn.timeout_ms.saturating_mul(1_000_000);
            Ok(Run {
                id: spawn.run_id,
                pid,
                started_ns: now_ns,
                deadline_ns: (spawn.timeout_ms > 0).then(|| now_ns.saturating_add(timeout_ns)),
                grace_ns: spawn.grace_ms.saturating_mul(1_000_000),
                kill_on_exit: spawn.kill_on_exit,
                ending: Ending::No,
                timed_out: false,
                killed: false,
                leaf,
                leaf_kill: File::from(leaf_kill),
                status,
                kept: keep(&mut fds),
                exited: None,
                reported: false,
                // Who asked for it knows it.
                introduced: true,
            })
        }
    }
}

/// What a re-adopting daemon will need; the rest is closed.
fn keep(fds: &mut Fds) -> Fds {
    let mut kept = Fds::default();
    for role in KEPT {
        if let Some(fd) = fds.take(*role) {
            kept.push(*role, fd);
        }
    }
    kept
}
