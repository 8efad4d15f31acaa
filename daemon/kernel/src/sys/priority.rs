//! What the kernel prefers the calling process for: its scheduling policy, its nice value, its class of disk I/O.

use nix::errno::Errno;

use super::check;

/// The policy of ordinary processes (sched(7)).
pub const POLICY_OTHER: i32 = libc::SCHED_OTHER;
/// Policies that come before those of ordinary processes.
pub const POLICIES_BEFORE: [i32; 3] = [libc::SCHED_FIFO, libc::SCHED_RR, libc::SCHED_DEADLINE];
/// Classes of disk I/O (ioprio_set(2)): none follows the nice value.
pub const IO_NONE: i32 = 0;
/// The class that comes before all others.
pub const IO_REALTIME: i32 = 1;

const IO_CLASS_SHIFT: i32 = 13;
const IO_WHO_PROCESS: i32 = 1;

/// The policy, without its flags.
///
/// # Errors
/// The kernel's.
pub fn policy() -> nix::Result<i32> {
    // SAFETY: an integer only.
    let policy = Errno::result(unsafe { libc::sched_getscheduler(0) })?;
    Ok(policy & !libc::SCHED_RESET_ON_FORK)
}

/// Takes over [`POLICY_OTHER`].
///
/// # Errors
/// The kernel's.
pub fn set_ordinary_policy() -> nix::Result<()> {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads `none`, which lives during the call.
    Errno::result(unsafe { libc::sched_setscheduler(0, POLICY_OTHER, &raw const none) }).map(drop)
}

/// The nice value: the less, the more of the processor.
///
/// # Errors
/// The kernel's.
pub fn nice() -> nix::Result<i32> {
    // The library's function cannot tell -1 from an error.
    // SAFETY: integers only.
    let kernels = check(unsafe { libc::syscall(libc::SYS_getpriority, libc::PRIO_PROCESS, 0) })?;
    // The system call answers 40 to 1 for -20 to 19.
    i32::try_from(20 - kernels).map_err(|_| Errno::EOVERFLOW)
}

/// Sets the nice value.
///
/// # Errors
/// EACCES for a lower one without CAP_SYS_NICE.
pub fn set_nice(nice: i32) -> nix::Result<()> {
    // SAFETY: integers only.
    Errno::result(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) }).map(drop)
}

/// The class of disk I/O.
///
/// # Errors
/// ENOSYS on a kernel without disks.
pub fn io_class() -> nix::Result<i32> {
    // SAFETY: integers only.
    let value = check(unsafe { libc::syscall(libc::SYS_ioprio_get, IO_WHO_PROCESS, 0) })?;
    i32::try_from(value >> IO_CLASS_SHIFT).map_err(|_| Errno::EOVERFLOW)
}

/// Takes over [`IO_NONE`].
///
/// # Errors
/// The kernel's.
pub fn set_no_io_class() -> nix::Result<()> {
    let value = IO_NONE << IO_CLASS_SHIFT;
    // SAFETY: integers only.
    check(unsafe { libc::syscall(libc::SYS_ioprio_set, IO_WHO_PROCESS, 0, value) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_what_is_told() {
        // Of this thread alone, which ends with the test.
        set_nice(7).expect("set");
        assert_eq!(nice(), Ok(7));
        set_ordinary_policy().expect("set");
        assert_eq!(policy(), Ok(POLICY_OTHER));
        set_no_io_class().expect("set");
        assert_eq!(io_class(), Ok(IO_NONE));
    }
}
