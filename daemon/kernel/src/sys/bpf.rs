//! bpf(2): loading a program for the devices of a cgroup, and attaching it. All other uses of the call are refused to sandboxes, and not
//! made here.

use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use nix::errno::Errno;

use super::check;

/// bpf(2), linux/bpf.h.
const PROG_LOAD: libc::c_long = 5;
const PROG_ATTACH: libc::c_long = 8;
const TYPE_CGROUP_DEVICE: u32 = 15;
const ATTACH_CGROUP_DEVICE: u32 = 6;

/// An instruction, in the kernel's form (`struct bpf_insn`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Instruction {
    pub(crate) code: u8,
    /// The destination register in the lower half, the source register in the upper.
    pub(crate) registers: u8,
    pub(crate) offset: i16,
    pub(crate) immediate: i32,
}

/// The first fields of `union bpf_attr` for PROG_LOAD; the kernel takes the rest for zero.
#[repr(C)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log: [u64; 2],
}

/// The first fields of `union bpf_attr` for PROG_ATTACH.
#[repr(C)]
struct Attach {
    group: u32,
    program: u32,
    kind: u32,
    flags: u32,
}

/// Loads a program of BPF_PROG_TYPE_CGROUP_DEVICE.
///
/// # Errors
/// EPERM without CAP_BPF and CAP_NET_ADMIN; EINVAL where the kernel was built without.
pub(crate) fn load_device_program(program: &[Instruction]) -> nix::Result<OwnedFd> {
    let load = Load {
        kind: TYPE_CGROUP_DEVICE,
        count: u32::try_from(program.len()).map_err(|_| Errno::E2BIG)?,
        instructions: program.as_ptr() as u64,
        license: c"Apache-2.0".as_ptr() as u64,
        log: [0; 2],
    };
    // SAFETY: the kernel reads `load`, the instructions and the licence, which all live during the call, and nothing beyond the given
    // sizes.
    let fd = check(unsafe {
        libc::syscall(libc::SYS_bpf, PROG_LOAD, &raw const load, size_of::<Load>())
    })?;
    let fd = i32::try_from(fd).map_err(|_| Errno::EBADF)?;
    // SAFETY: the kernel has just made it, for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Attaches it to a group of version 2, alone: groups below cannot have one of their own.
///
/// # Errors
/// The kernel's.
pub(crate) fn attach_to_devices(group: BorrowedFd<'_>, program: BorrowedFd<'_>) -> nix::Result<()> {
    let number = |fd: BorrowedFd<'_>| u32::try_from(fd.as_raw_fd()).map_err(|_| Errno::EBADF);
    let attach = Attach {
        group: number(group)?,
        program: number(program)?,
        kind: ATTACH_CGROUP_DEVICE,
        flags: 0,
    };
    // SAFETY: the kernel reads `attach`, which lives during the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_bpf,
            PROG_ATTACH,
            &raw const attach,
            size_of::<Attach>(),
        )
    })
    .map(drop)
}
