//! What a sandbox would have of whoever started lodged, and has not: resource limits are those of a table, and nothing makes it
//! dearer to the kernel than an ordinary process. What makes it less dear is the host's own choice, and stays.

use std::fs;

use lodge_kernel::protection::Protection;
use lodge_kernel::sys::priority;
use nix::errno::Errno;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};

use crate::protocol::{Cause, errno_of, on};

/// A limit of every process of a sandbox. The hard one is never above the one that lodged has: to raise it takes
/// CAP_SYS_RESOURCE, which not every host's root has.
struct Limit {
    resource: Resource,
    name: &'static str,
    soft: u64,
    hard: u64,
}

/// The same, soft and hard.
const fn most(resource: Resource, name: &'static str, most: u64) -> Limit {
    Limit {
        resource,
        name,
        soft: most,
        hard: most,
    }
}

/// The first four become ceilings of the whole user namespace when it is made (since Linux 5.14); that of open files and that of core
/// files are set by PID 1.
const LIMITS: &[Limit] = &[
    // The pids limit of the cgroup is the real bound; this one only stands behind it.
    most(Resource::RLIMIT_NPROC, "processes", 30_000),
    most(Resource::RLIMIT_SIGPENDING, "pending signals", 16_384),
    most(Resource::RLIMIT_MSGQUEUE, "message queue bytes", 819_200),
    most(Resource::RLIMIT_MEMLOCK, "locked memory bytes", 64 << 20),
    // With these a process inside could come before those of the host.
    most(Resource::RLIMIT_NICE, "nice value", 0),
    most(Resource::RLIMIT_RTPRIO, "realtime priority", 0),
    // An administrator's `ulimit` in the shell that lodged was started from is nothing that a sandbox was asked to have.
    most(Resource::RLIMIT_AS, "address space", RLIM_INFINITY),
    most(Resource::RLIMIT_CPU, "processor seconds", RLIM_INFINITY),
    most(Resource::RLIMIT_DATA, "data segment", RLIM_INFINITY),
    most(Resource::RLIMIT_FSIZE, "file size", RLIM_INFINITY),
    // The kernel's own default: more of it moves where memory is mapped.
    Limit {
        resource: Resource::RLIMIT_STACK,
        name: "stack",
        soft: 8 << 20,
        hard: RLIM_INFINITY,
    },
];

const OOM_SCORE: &str = "/proc/self/oom_score_adj";

/// Sets the limits of the table.
pub(super) fn set_limits() -> Result<(), Cause> {
    if Protection::Ordinary.is_off() {
        return Ok(());
    }
    for limit in LIMITS {
        let (_, hard) = getrlimit(limit.resource).map_err(on(limit.name))?;
        let hard = hard.min(limit.hard);
        setrlimit(limit.resource, limit.soft.min(hard), hard).map_err(on(limit.name))?;
    }
    Ok(())
}

/// Gives up what lodged may have of the kernel's favour: an own policy, nice value and class of disk I/O, and being spared where
/// memory runs out, as its unit has it. To be called by the host's root: with CAP_SYS_RESOURCE nobody inside can take that back.
pub(super) fn give_up_favour() -> Result<(), Cause> {
    if Protection::Ordinary.is_off() {
        return Ok(());
    }
    const POLICY: &str = "scheduling policy";
    if priority::POLICIES_BEFORE.contains(&priority::policy().map_err(on(POLICY))?) {
        priority::set_ordinary_policy().map_err(on(POLICY))?;
    }
    if priority::nice().map_err(on("nice value"))? < 0 {
        priority::set_nice(0).map_err(on("nice value"))?;
    }
    if priority::io_class().map_err(on("disk priority"))? == priority::IO_REALTIME {
        priority::set_no_io_class().map_err(on("disk priority"))?;
    }
    if is_spared()? {
        fs::write(OOM_SCORE, "0").map_err(|e| on(OOM_SCORE)(errno_of(&e)))?;
        if is_spared()? {
            return Err(on(OOM_SCORE)(Errno::EPERM));
        }
    }
    Ok(())
}

/// Whether the kernel would rather kill others, where memory runs out (proc(5)).
fn is_spared() -> Result<bool, Cause> {
    let said = fs::read_to_string(OOM_SCORE).map_err(|e| on(OOM_SCORE)(errno_of(&e)))?;
    let score: i32 = said
        .trim()
        .parse()
        .map_err(|_| on(OOM_SCORE)(Errno::EINVAL))?;
    Ok(score < 0)
}
