//! PID 1 makes its sandbox. The order is the table [`STEPS`]; an error names its step. Everything is done before any untrusted
//! process exists, by descriptor where a path could lead astray, and ends with the sandbox's own seccomp filter. If any step
//! fails, nothing starts.

mod devices;
mod etc;
mod kernel_fs;
mod lockdown;
mod read_only_root;
mod tree;

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use lodge_kernel::seccomp::Program;
use lodge_kernel::sys::clone::{SingleThreaded, exit_now};
use lodge_proto::holder::{FdRole, Launch, StepFailure};
use nix::errno::Errno;

use crate::launcher::End;
use crate::launcher::Said;
use crate::protocol::{Cause, Fds, StepError};
use crate::serve::{self, Holder};

/// Everything that PID 1 is made from. The descriptors are the launcher's until the fork, and PID 1's own after it.
pub(crate) struct Init {
    request: Launch,
    base_filter: Program,
    run_filter: Program,
    holder_group: OwnedFd,
    holder_tasks: Vec<OwnedFd>,
    run_tasks: Vec<OwnedFd>,
    listener: OwnedFd,
    connection: OwnedFd,
}

/// What the steps make and need of each other.
struct Making<'a> {
    init: &'a Init,
    /// Idmapped layers, uppermost first.
    lowers: Vec<OwnedFd>,
    /// Over them, or the whole root where there are none; until it has its place.
    writable: Option<OwnedFd>,
    /// A small tmpfs on which the layers hang while the root is made, and which keeps the files over /etc.
    stage: Option<OwnedFd>,
    /// The sandbox's root: an overlay mount, or what is writable as a whole.
    root: Option<OwnedFd>,
    /// The user namespace's quotas of further namespaces, open for writing.
    quotas: Vec<OwnedFd>,
}

type Step = fn(&mut Making<'_>) -> Result<(), Cause>;

/// The order of set-up, with the reason for each place.
const STEPS: &[(&str, Step)] = &[
    // Nothing of the daemon's terminal or log reaches a sandbox.
    ("session", lockdown::session),
    // The holder's own v1 groups: outside `runs`, so that no bomb inside takes the control path.
    ("holder-cgroups", lockdown::join_holder_groups),
    ("hostname", lockdown::hostname),
    ("loopback", lockdown::loopback),
    // Before the first mount: nothing we mount may spread to the host.
    ("private-mounts", tree::make_private),
    ("stage", tree::stage),
    ("layers", tree::layers),
    ("root", tree::root),
    // The image may lack the directories that we mount on, or have put links in their place.
    ("mount-points", tree::mount_points),
    // /dev first: no later step creates anything through the image's own.
    ("dev", devices::dev),
    ("device-nodes", devices::nodes),
    ("devpts", devices::pts),
    ("shm", devices::shm),
    ("mqueue", devices::mqueue),
    ("proc", kernel_fs::proc),
    // While /proc/sys can still be written to.
    ("open-quotas", kernel_fs::open_namespace_quotas),
    ("sys", kernel_fs::sys),
    ("read-only", kernel_fs::read_only),
    ("masks", kernel_fs::masks),
    ("etc", etc::files),
    // From here on no path leads to the host.
    ("pivot-root", tree::pivot),
    ("writable", tree::check_writable),
    ("read-only-root", read_only_root::read_only_root),
    // After the last mount: a detached mount counts as a mount namespace. Needs the capabilities that are dropped next.
    ("namespace-quotas", kernel_fs::no_nested_namespaces),
    ("limits", lockdown::limits),
    ("capabilities", lockdown::capabilities),
    ("non-dumpable", lockdown::non_dumpable),
    // Last: the filter forbids what the steps above do.
    ("seccomp", lockdown::seccomp),
];

impl Init {
    /// Takes the descriptors that PID 1 needs.
    pub(crate) fn new(
        request: Launch,
        mut fds: Fds,
        base_filter: Program,
        run_filter: Program,
    ) -> Result<Self, StepFailure> {
        let missing = |what: &str| StepError {
            step: "request",
            object: what.to_owned(),
            errno: Errno::EBADF,
        };
        Ok(Self {
            holder_group: fds
                .take(FdRole::CgroupHolder)
                .ok_or_else(|| missing("holder cgroup"))?,
            listener: fds
                .take(FdRole::Listener)
                .ok_or_else(|| missing("listening socket"))?,
            connection: fds
                .take(FdRole::Connection)
                .ok_or_else(|| missing("connection"))?,
            holder_tasks: fds.take_all(FdRole::V1TasksHolder),
            run_tasks: fds.take_all(FdRole::V1TasksRuns),
            request,
            base_filter,
            run_filter,
        })
    }

    /// The v2 group that PID 1 is forked into.
    pub(crate) fn holder_group(&self) -> BorrowedFd<'_> {
        self.holder_group.as_fd()
    }

    /// Makes the sandbox and serves it. `mounts`: the lower layers, uppermost first, then the writable one. Never returns.
    pub(crate) fn run(self, alone: SingleThreaded, launcher: &End, mut mounts: Vec<OwnedFd>) -> ! {
        let Some(writable) = mounts.pop() else {
            exit_now(1)
        };
        let mut making = Making {
            init: &self,
            lowers: mounts,
            writable: Some(writable),
            stage: None,
            root: None,
            quotas: Vec::new(),
        };
        for (step, run) in STEPS {
            if let Err(Cause { object, errno }) = run(&mut making) {
                launcher.fail(StepError {
                    step,
                    object,
                    errno,
                });
                exit_now(1);
            }
        }
        let taken = Holder::take_over(
            alone,
            &self.connection,
            &self.listener,
            launcher,
            &self.run_tasks,
            self.shared(),
        );
        let (holder, launcher) = match taken {
            Ok(taken) => taken,
            Err(errno) => {
                launcher.fail(StepError {
                    step: "descriptors",
                    object: "holder".to_owned(),
                    errno,
                });
                exit_now(1)
            }
        };
        // If the launcher is gone now, the sandbox is made all the same: the daemon finds it by its socket.
        let _ = launcher.say(&Said::Ready);
        drop(launcher);
        serve::run(holder)
    }

    fn shared(&self) -> serve::RunSettings {
        serve::RunSettings {
            filter: self.run_filter.clone(),
            open_files: self.request.open_files,
            no_new_privileges: self.request.no_new_privileges,
        }
    }
}
