//! Capability sets of this process: capset(2), and the bounding set through prctl(2).

use nix::errno::Errno;

use super::check;

/// Version 3 of the kernel's interface: two 32-bit words a set (linux/capability.h).
const VERSION_3: u32 = 0x2008_0522;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Word {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Sets effective and permitted to `mask` (bit n = capability n) and empties inheritable.
///
/// # Errors
/// EPERM where `mask` holds more than is permitted now.
pub fn set(mask: u64) -> nix::Result<()> {
    let header = Header {
        version: VERSION_3,
        pid: 0,
    };
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the two halves of the mask"
    )]
    let word = |bits: u64| Word {
        effective: bits as u32,
        permitted: bits as u32,
        inheritable: 0,
    };
    let words = [word(mask), word(mask >> 32)];
    // SAFETY: header and data have the layout that version 3 asks for, and live until the call returns.
    let ret = unsafe { libc::syscall(libc::SYS_capset, &raw const header, words.as_ptr()) };
    check(ret).map(drop)
}

/// Drops every capability that is not in `keep` (bit n = capability n) from the bounding set.
///
/// # Errors
/// EPERM without CAP_SETPCAP.
pub fn bound(keep: u64) -> nix::Result<()> {
    for cap in 0..64 {
        if keep & (1 << cap) != 0 {
            continue;
        }
        // SAFETY: integers only.
        match Errno::result(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, cap, 0, 0, 0) }) {
            Ok(_) => {}
            // The first number that this kernel does not know: all its capabilities are done.
            Err(Errno::EINVAL) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Empties the ambient set.
///
/// # Errors
/// The kernel's.
pub fn clear_ambient() -> nix::Result<()> {
    // SAFETY: integers only.
    let ret = unsafe {
        libc::prctl(
            libc::PR_CAP_AMBIENT,
            libc::PR_CAP_AMBIENT_CLEAR_ALL,
            0,
            0,
            0,
        )
    };
    Errno::result(ret).map(drop)
}
