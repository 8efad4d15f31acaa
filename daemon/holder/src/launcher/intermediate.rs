//! The process between the launcher and PID 1: it becomes the sandbox's own host uid, makes the namespaces, and forks PID 1
//! into them (a pid namespace takes effect for children only). Then it is gone.

use std::os::fd::OwnedFd;

use lodge_kernel::identity::{become_owner, hide_memory};
use lodge_kernel::sys::clone::{Forked, SingleThreaded, exit_now, fork_into};
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};

use super::ordinary;
use super::rendezvous::{End, Said};
use crate::init::Init;
use crate::protocol::{Cause, StepError, join_v1_groups, on};

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
    // A realtime process may be in no cpu group of v1. The groups come before the namespaces, so that the cgroup namespace is
    // rooted there.
    let done = ordinary::give_up_favour()
        .map_err(failed("ordinary"))
        .and_then(|()| join_v1_groups(&me.tasks).map_err(failed("join-cgroups")))
        .and_then(|()| ordinary::set_limits().map_err(failed("namespace-ceilings")))
        .and_then(|()| {
            become_owner(me.uid_base)
                // A change of uid makes it dumpable again where fs.suid_dumpable says so.
                .and_then(|()| hide_memory())
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
