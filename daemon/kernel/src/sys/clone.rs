//! fork by clone3(2), optionally straight into a cgroup, and leaving a forked child.

use std::fs;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::errno::Errno;
use nix::sys::signal::Signal;

use super::check;

/// linux/sched.h. (The libc crate's constant is an int, which it does not fit into.)
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Proof that this process has one thread, so that a forked child may go on running Rust code: no lock of another
/// thread is held in it. Neither `Send` nor `Sync`.
#[derive(Debug, Clone, Copy)]
pub struct SingleThreaded(std::marker::PhantomData<*const ()>);

impl SingleThreaded {
    /// Counts the threads of this process; `None` if there is more than one, or if /proc cannot tell.
    pub fn check() -> Option<Self> {
        let tasks = fs::read_dir("/proc/self/task").ok()?;
        (tasks.count() == 1).then_some(Self(std::marker::PhantomData))
    }
}

/// Which side of a fork this is.
#[derive(Debug, Clone, Copy)]
pub enum Forked {
    /// The parent; the child's pid as the parent's pid namespace sees it.
    Parent(i32),
    /// The child.
    Child,
}

/// Forks with clone3(2). With `cgroup` (a v2 directory) the child starts inside that group, which costs no grace period, unlike a write
/// to `cgroup.procs` (CLONE_INTO_CGROUP, Linux 5.7).
///
/// # Errors
/// The kernel's; EAGAIN where a pids limit is reached, EACCES where the caller may not write the group's `cgroup.procs`.
pub fn fork_into(_alone: SingleThreaded, cgroup: Option<BorrowedFd<'_>>) -> nix::Result<Forked> {
    // SAFETY: an all-zero clone_args is valid: every field is an integer for which zero means "not used".
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.exit_signal = Signal::SIGCHLD as u64;
    if let Some(dir) = cgroup {
        args.flags = CLONE_INTO_CGROUP;
        args.cgroup = u64::try_from(dir.as_raw_fd()).map_err(|_| Errno::EBADF)?;
    }
    // SAFETY: without CLONE_VM the child gets its own copy of the memory and goes on from here on the same stack; `SingleThreaded`
    // says that no other thread could have left a lock held. The size is that of the struct passed.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw mut args,
            size_of::<libc::clone_args>(),
        )
    };
    match check(ret)? {
        0 => Ok(Forked::Child),
        pid => Ok(Forked::Parent(
            i32::try_from(pid).map_err(|_| Errno::EOVERFLOW)?,
        )),
    }
}

/// Ends this process at once, without running destructors or exit handlers: for a forked child.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: _exit(2) has no precondition and does not return.
    unsafe { libc::_exit(status) }
}

/// Sets every signal to its default action and blocks none. A Rust program starts with SIGPIPE ignored, and whoever started
/// it may have ignored others; both would be inherited by every command.
///
/// # Errors
/// The kernel's, from sigprocmask(2).
pub fn default_signals() -> nix::Result<()> {
    let default = KernelAction::default();
    for signal in 1..=LAST_SIGNAL {
        // By the system call itself: the C library keeps 32 and 33 to itself, and may have been started with them ignored.
        // SAFETY: the kernel reads one of its own sigactions, which `KernelAction` is laid out as; the old one is not wanted. Default
        // actions point to no code. SIGKILL and SIGSTOP fail with EINVAL, which leaves them at their default.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                &raw const default,
                std::ptr::null_mut::<KernelAction>(),
                size_of::<u64>(),
            );
        }
    }
    nix::sys::signal::SigSet::empty().thread_set_mask()
}

/// Highest signal number (SIGRTMAX).
const LAST_SIGNAL: libc::c_int = 64;

/// The kernel's `struct sigaction` on x86_64; all zero is SIG_DFL with an empty mask and no flags.
#[repr(C)]
#[derive(Default)]
struct KernelAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}
