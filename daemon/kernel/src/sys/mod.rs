//! The only unsafe code of Lodge: thin wrappers, one system call each, owned descriptors in and out, no policy.

#![allow(
    unsafe_code,
    reason = "system calls that no safe crate wraps; everywhere else unsafe is denied"
)]

pub(crate) mod bpf;
pub(crate) mod btrfs;
pub mod capability;
pub mod clone;
pub(crate) mod ext4;
pub mod fd;
pub mod interface;
pub(crate) mod loopback;
pub mod mount;
pub mod packet;
pub mod pidfd;
pub mod priority;
pub(crate) mod seccomp;
pub mod wait;
pub(crate) mod xattr;

use nix::errno::Errno;

/// Turns a raw system call's return value into a result.
fn check(ret: libc::c_long) -> nix::Result<libc::c_long> {
    if ret < 0 { Err(Errno::last()) } else { Ok(ret) }
}
