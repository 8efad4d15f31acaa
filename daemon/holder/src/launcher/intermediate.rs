//! The process between the launcher and PID 1: it becomes the sandbox's own host uid, makes the namespaces, and forks PID 1
//! into them (a pid namespace takes effect for children only). Then it is gone.

use std::os::fd::OwnedFd;

use lodge_kernel::identity::become_owner;
use lodge_kernel::sys::clone::{Forked, SingleThreaded, exit_now, fork_into};
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::rendezvous::{End, Said};
use crate::init::Init;
use crate::protocol::{Cause, StepError, join_v1_groups, on};

/// Ceilings that become the whole user namespace's when it is made (since Linux 5.14): (resource, name, most). The pids limit of the
/// cgroup is the real bound of processes; this one only stands behind it.
const NAMESPACE_CEILINGS: &[(Resource, &str, u64)] = &[
    (Resource::RLIMIT_NPROC, "processes", 30_000),
    (Resource::RLIMIT_SIGPENDING, "pending signals", 16_384),
    (Resource::RLIMIT_MSGQUEUE, "message queue bytes", 819_200),
    (Resource::RLIMIT_MEMLOCK, "locked memory bytes", 64 << 20),
];

/// What the process needs.
pub(super) struct Intermediate {
    pub(super) uid_base: u32,
    pub(super) end: End,
    /// v1 `tasks` of the sandbox's group, one per hierarchy.
    pub(super) tasks: Vec<OwnedFd>,
}

/// Runs the intermediate process; PID 1 goes on in [`Init::run`]. Never returns.
pub(super) fn run(alone: SingleThreaded, me: Intermediate, init: Init) -> ! {
    let failed = |step| {
        move |cause: Cause| StepError {
            step,
            object: cause.object,
            errno: cause.errno,
        }
    };
    // The sandbox's v1 groups first, so that the cgroup namespace is rooted there.
    let done = join_v1_groups(&me.tasks)
        .map_err(failed("join-cgroups"))
        .and_then(|()| set_ceilings().map_err(failed("namespace-ceilings")))
        .and_then(|()| {
            become_owner(me.uid_base)
                .map_err(on("host uid"))
                .map_err(failed("own-uid"))
        })
        .and_then(|()| make_namespaces().map_err(failed("namespaces")))
        .and_then(|()| enter(alone, &me, init).map_err(failed("fork")));
    match done {
        Ok(()) => exit_now(0),
        Err(error) => {
            me.end.fail(error);
            exit_now(1)
        }
    }
}

fn set_ceilings() -> Result<(), Cause> {
    for &(resource, name, most) in NAMESPACE_CEILINGS {
        // Lowering needs no privilege; raising would need CAP_SYS_RESOURCE, which not every host's root has.
        let (_, hard) = getrlimit(resource).map_err(on(name))?;
        let bound = hard.min(most);
        setrlimit(resource, bound, bound).map_err(on(name))?;
    }
    Ok(())
}

fn make_namespaces() -> Result<(), Cause> {
    let all = CloneFlags::CLONE_NEWUSER
        | CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWNET
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWCGROUP;
    unshare(all).map_err(on(
        "user, mount, pid, network, ipc, uts and cgroup namespace",
    ))
}

/// Waits for the id maps, then forks PID 1 into the holder's group.
fn enter(alone: SingleThreaded, me: &Intermediate, init: Init) -> Result<(), Cause> {
    me.end.say(&Said::Unshared).map_err(on("launcher"))?;
    let mounts = match me.end.hear().map_err(on("launcher"))? {
        Said::Mapped(mounts) => mounts,
        _ => return Err(on("launcher")(Errno::EBADMSG)),
    };
    match fork_into(alone, Some(init.holder_group())).map_err(on("holder"))? {
        Forked::Child => init.run(alone, &me.end, mounts),
        Forked::Parent(pid) => me.end.say(&Said::Forked(pid)).map_err(on("launcher")),
    }
}
