//! One launch, the launcher's side: fork the intermediate process, map its ids, make the idmapped mounts with the host's root,
//! and wait until PID 1 says that its sandbox is made.

use std::os::fd::{AsFd as _, OwnedFd};

use lodge_kernel::identity::ProcDir;
use lodge_kernel::mount::{attr, idmap_detached, idmapped};
use lodge_kernel::sys::clone::{Forked, fork_into};
use lodge_kernel::sys::pidfd;
use lodge_proto::holder::{FdRole, Launch, StepFailure};
use nix::errno::Errno;
use nix::sys::signal::Signal;

use super::Launcher;
use super::intermediate::{self, Intermediate};
use super::rendezvous::{self, End, Said};
use crate::init::Init;
use crate::protocol::{Fds, StepError, errno_of};

fn failed(step: &'static str, object: impl Into<String>) -> impl FnOnce(Errno) -> StepFailure {
    move |errno| {
        StepError {
            step,
            object: object.into(),
            errno,
        }
        .into()
    }
}

pub(super) fn missing(what: &'static str) -> StepFailure {
    failed("request", what)(Errno::EBADF)
}

/// What a sandbox writes to.
enum Writable {
    /// A directory of a file system that others have too.
    Directory(OwnedFd),
    /// A mount of its own, attached nowhere.
    Mount(OwnedFd),
}

impl Writable {
    fn take(fds: &mut Fds) -> Result<Self, StepFailure> {
        let mount = fds.take(FdRole::WritableMount).map(Self::Mount);
        mount
            .or_else(|| fds.take(FdRole::Writable).map(Self::Directory))
            .ok_or_else(|| missing("writable layer"))
    }

    /// As an idmapped mount that is attached nowhere.
    fn idmapped(&self, userns: &OwnedFd) -> nix::Result<OwnedFd> {
        match self {
            Self::Directory(directory) => idmapped(directory.as_fd(), userns, 0),
            Self::Mount(mount) => {
                idmap_detached(mount.as_fd(), userns)?;
                mount.try_clone().map_err(|error| errno_of(&error))
            }
        }
    }
}

/// Makes a sandbox; returns its PID 1 (as the host sees it) and a pidfd of it.
pub(super) fn launch(
    launcher: &Launcher,
    request: Launch,
    mut fds: Fds,
) -> Result<(i32, OwnedFd), StepFailure> {
    let lowers = fds.take_all(FdRole::Lower);
    let writable = Writable::take(&mut fds)?;
    let sandbox_group = fds
        .take(FdRole::CgroupSandbox)
        .ok_or_else(|| missing("sandbox cgroup"))?;
    let base = request.uid_base;
    let (ours, theirs) = rendezvous::pair().map_err(failed("rendezvous", "socket pair"))?;
    let child = Intermediate {
        uid_base: base,
        end: theirs,
        tasks: fds.take_all(FdRole::V1TasksSandbox),
    };
    let init = Init::new(
        request,
        fds,
        launcher.base_filter.clone(),
        launcher.run_filter.clone(),
    )?;

    match fork_into(launcher.alone, Some(sandbox_group.as_fd()))
        .map_err(failed("fork", "intermediate process"))?
    {
        Forked::Child => {
            drop(ours);
            intermediate::run(launcher.alone, child, init)
        }
        Forked::Parent(pid) => {
            // Only the children hold the other end now, so that their death is an end and not a wait.
            drop(child);
            drop(init);
            let intermediate = pidfd::open(pid).map_err(failed("fork", "intermediate process"))?;
            let made = attend(&ours, pid, base, &lowers, &writable);
            if made.is_err() {
                let _ = pidfd::send_signal(intermediate.as_fd(), Signal::SIGKILL);
            }
            made
        }
    }
}

/// Answers the intermediate process until PID 1 is ready. A PID 1 that fails half-way is killed.
fn attend(
    end: &End,
    intermediate: i32,
    base: u32,
    lowers: &[OwnedFd],
    writable: &Writable,
) -> Result<(i32, OwnedFd), StepFailure> {
    let mut holder = None;
    loop {
        let said = end.hear().map_err(failed("rendezvous", "holder"));
        match said {
            Ok(Said::Unshared) => {
                let mounts = map(intermediate, base, lowers, writable)?;
                end.say(&Said::Mapped(mounts))
                    .map_err(failed("rendezvous", "holder"))?;
            }
            // Nobody but us reaps it, so the pid cannot be another's yet.
            Ok(Said::Forked(pid)) => {
                let handle = pidfd::open(pid).map_err(failed("fork", "holder"))?;
                holder = Some((pid, handle));
            }
            Ok(Said::Ready) => {
                if let Some(holder) = holder.take() {
                    return Ok(holder);
                }
                // PID 1 was quicker than the message of the process that forked it.
                return match end.hear().map_err(failed("rendezvous", "holder"))? {
                    Said::Forked(pid) => {
                        Ok((pid, pidfd::open(pid).map_err(failed("fork", "holder"))?))
                    }
                    _ => Err(failed("rendezvous", "holder")(Errno::EBADMSG)),
                };
            }
            Ok(Said::Failed(failure)) | Err(failure) => {
                if let Some((_, handle)) = &holder {
                    let _ = pidfd::send_signal(handle.as_fd(), Signal::SIGKILL);
                }
                return Err(failure);
            }
            Ok(Said::Mapped(_)) => return Err(failed("rendezvous", "holder")(Errno::EBADMSG)),
        }
    }
}

/// Writes the id maps, then makes the idmapped mounts: both take the host's root, and the second needs the first.
fn map(
    pid: i32,
    base: u32,
    lowers: &[OwnedFd],
    writable: &Writable,
) -> Result<Vec<OwnedFd>, StepFailure> {
    let process = ProcDir::open(pid).map_err(failed("id-map", "process"))?;
    process
        .map_ids(base)
        .map_err(|e| failed("id-map", format!("host ids from {base}"))(errno_of(&e)))?;
    let userns = process
        .user_namespace()
        .map_err(failed("id-map", "user namespace"))?;
    let mut mounts = Vec::with_capacity(lowers.len() + 1);
    for (n, lower) in lowers.iter().enumerate() {
        let mount = idmapped(lower.as_fd(), &userns, attr::RDONLY);
        mounts.push(mount.map_err(failed("idmapped-layer", format!("layer {n}")))?);
    }
    let mount = writable.idmapped(&userns);
    mounts.push(mount.map_err(failed("idmapped-layer", "writable layer"))?);
    Ok(mounts)
}
