//! The steps that make PID 1 itself safe: its session, groups, limits, capabilities and filter.

use lodge_kernel::identity::hide_memory;
use lodge_kernel::protection::Protection;
use lodge_kernel::sys::{capability, interface};
use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{sethostname, setsid};

use super::Making;
use crate::protocol::{Cause, join_v1_groups, on};

/// Name of PID 1 in process lists.
const COMM: &std::ffi::CStr = c"lodge-holder";

/// Open files per process, at most (the hard RLIMIT_NOFILE). The holder's own bound as well.
const OPEN_FILES_HARD: u64 = 20_000;

/// What a sandbox's root keeps: what package managers, sudo and build tools need, and nothing that reaches the kernel's
/// configuration, devices, raw network or other processes' limits (linux/capability.h).
const BOUNDING_SET: &[(u8, &str)] = &[
    (0, "CHOWN: package managers"),
    (1, "DAC_OVERRIDE: root reads and writes files of its users"),
    (3, "FOWNER: the same for modes and times"),
    (4, "FSETID: set-user-id bits survive a write by their owner"),
    (5, "KILL: root ends its users' processes"),
    (6, "SETGID: sudo, su, package managers"),
    (7, "SETUID: the same"),
    (8, "SETPCAP: lets a program drop more"),
    (
        10,
        "NET_BIND_SERVICE: ports below 1024 in its own network namespace",
    ),
    (18, "SYS_CHROOT: debootstrap, tests that chroot"),
    (19, "SYS_PTRACE: gdb and strace on its own processes"),
    (
        29,
        "AUDIT_WRITE: sudo and su write to an audit socket that they do not get",
    ),
    (
        31,
        "SETFCAP: package managers set file capabilities, valid in this user namespace only",
    ),
];

/// Makes a session of its own, with its own name and file mode mask.
pub(super) fn session(_: &mut Making<'_>) -> Result<(), Cause> {
    setsid().map_err(on("session"))?;
    umask(Mode::from_bits_truncate(0o022));
    prctl::set_name(COMM).map_err(on("name"))
}

/// Leaves the sandbox's v1 groups for the holder's own.
pub(super) fn join_holder_groups(making: &mut Making<'_>) -> Result<(), Cause> {
    join_v1_groups(&making.init.holder_tasks)
}

/// Sets the hostname of this uts namespace.
pub(super) fn hostname(making: &mut Making<'_>) -> Result<(), Cause> {
    sethostname(&making.init.request.hostname).map_err(on("hostname"))
}

/// Brings loopback up.
pub(super) fn loopback(_: &mut Making<'_>) -> Result<(), Cause> {
    interface::loopback_up().map_err(on("lo"))
}

/// Sets what every run inherits.
pub(super) fn limits(_: &mut Making<'_>) -> Result<(), Cause> {
    // No core files: with a pattern that is a pipe, a crash inside would run a program on the host.
    setrlimit(Resource::RLIMIT_CORE, 0, 0).map_err(on("core files"))?;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(on("open files"))?;
    let bound = if Protection::OpenFiles.is_off() {
        hard
    } else {
        hard.min(OPEN_FILES_HARD)
    };
    setrlimit(Resource::RLIMIT_NOFILE, bound, bound).map_err(on("open files"))
}

/// Bounds what any program inside can ever get. PID 1 keeps what it has: its runs' filters and uids need it.
pub(super) fn capabilities(_: &mut Making<'_>) -> Result<(), Cause> {
    let keep = BOUNDING_SET
        .iter()
        .fold(0, |mask, (cap, _)| mask | 1 << cap);
    capability::clear_ambient().map_err(on("ambient set"))?;
    if !Protection::BoundingSet.is_off() {
        capability::bound(keep).map_err(on("bounding set"))?;
    }
    let every = u64::MAX >> (63 - last_capability());
    capability::set(every).map_err(on("inheritable set"))
}

/// The highest capability of kernels since 5.9 (CHECKPOINT_RESTORE).
const fn last_capability() -> u32 {
    40
}

/// Keeps PID 1's memory, descriptors and environment from everyone inside, root too. Set already before the fork; once more, since it is
/// what everything else rests on.
pub(super) fn non_dumpable(_: &mut Making<'_>) -> Result<(), Cause> {
    hide_memory().map_err(on("dumpable flag"))?;
    if prctl::get_dumpable().map_err(on("dumpable flag"))? && !Protection::NonDumpable.is_off() {
        return Err(on("dumpable flag")(Errno::EPERM));
    }
    Ok(())
}

/// Installs the filter that every process of the sandbox inherits.
pub(super) fn seccomp(making: &mut Making<'_>) -> Result<(), Cause> {
    if Protection::BaseFilter.is_off() {
        return Ok(());
    }
    lodge_kernel::seccomp::install(&making.init.base_filter).map_err(on("base filter"))
}
