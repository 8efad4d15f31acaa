//! seccomp(2).

use nix::errno::Errno;

use super::check;
use crate::seccomp::Program;

/// No flag is set:
///
/// * `TSYNC` not: whoever installs has one thread, and a failed synchronisation is reported as a positive thread id that
///   is easily taken for success.
/// * `SPEC_ALLOW` not: on kernels before 5.16 a filtered process gets mitigations against speculative store bypass and
///   indirect branches; untrusted code is what they are for. Later kernels make no difference.
/// * `LOG` not: a sandbox could fill the host's log with refused calls.
const NO_FLAGS: libc::c_ulong = 0;

/// Adds a filter to this process, for good: it is inherited by every child and survives execve, setuid programs
/// included. Needs CAP_SYS_ADMIN in the user namespace (that is why it works without no_new_privs) or no_new_privs.
/// Allocates nothing, so that a forked child may call it.
///
/// # Errors
/// EACCES without either right; EINVAL for a program that the kernel's checker refuses; ENOMEM.
pub fn install(program: &Program) -> nix::Result<()> {
    let instructions = program.instructions();
    let filter = libc::sock_fprog {
        len: u16::try_from(instructions.len()).map_err(|_| Errno::E2BIG)?,
        filter: instructions.as_ptr().cast_mut(),
    };
    // SAFETY: `filter` names exactly the instructions of `program`, which outlives the call; the kernel copies and never writes
    // through the pointer, although its type would let it.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            NO_FLAGS,
            &raw const filter,
        )
    };
    check(ret).map(drop)
}

#[cfg(test)]
mod tests;
