//! File systems and bind mounts by descriptor: what a sandbox's tree is made of.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;

pub use crate::sys::mount::{Depth, FsContext, attach, attr, clone_mount, set_attrs, set_idmap};

/// Bytes of a tmpfs for which it has one inode more: who fills it with files of a page each meets both bounds at once.
const BYTES_PER_INODE: u64 = 4096;
/// Inodes of a tmpfs, at least: one of names alone has no bytes to speak of.
const INODES_MIN: u64 = 1024;

/// A tmpfs of at most `size` bytes, attached nowhere. `mode` is its root's. Empty files take no bytes, so there is a bound on the
/// number of files as well: by itself the kernel allows one per two pages of the host's memory.
///
/// # Errors
/// The kernel's.
pub fn tmpfs(size: u64, mode: u32, attrs: u64) -> nix::Result<OwnedFd> {
    let context = FsContext::open(c"tmpfs")?;
    context.set(c"size", &text(size.to_string())?)?;
    let inodes = (size / BYTES_PER_INODE).max(INODES_MIN);
    context.set(c"nr_inodes", &text(inodes.to_string())?)?;
    context.set(c"mode", &text(format!("{mode:o}"))?)?;
    context.mount(attrs)
}

/// The options of an overlay that a sandbox's root mounts itself, and the reason of each (HARDENING, mount tree).
const OVERLAY_OPTIONS: &[(&CStr, &CStr)] = &[
    // A forged redirect in a layer must not lead anywhere; "off" still follows where the kernel's default says so.
    (c"redirect_dir", c"nofollow"),
    // A metadata-only copy would take data from wherever its redirect points.
    (c"metacopy", c"off"),
    // File handles of layers are not to be decoded, and NFS export is not wanted.
    (c"index", c"off"),
    // Inode numbers stay distinct where layers lie on different file systems.
    (c"xino", c"auto"),
];

/// An overlay of `lowers` (uppermost first) with the writable directories `upper` and `work`, all paths relative to the working
/// directory, so that /proc/mounts shows nothing of the host. To be called by the sandbox's own root: then ids on disk stay
/// 0..65,535. Attached nowhere.
///
/// # Errors
/// The kernel's.
pub fn overlay(lowers: &[&str], upper: &CStr, work: &CStr) -> nix::Result<OwnedFd> {
    let context = FsContext::open(c"overlay")?;
    set_lowers(&context, lowers)?;
    context.set(c"upperdir", upper)?;
    context.set(c"workdir", work)?;
    // Bookkeeping in user.overlay.*: trusted.* needs the host's root.
    context.flag(c"userxattr")?;
    for (key, value) in OVERLAY_OPTIONS {
        context.set(key, value)?;
    }
    context.mount(attr::NODEV)
}

/// Longest value of an option, in bytes (fsconfig(2)).
const OPTION_MAX: usize = 255;

/// One option holds some sixty layers. More go one by one, which kernels before 6.5 do not know.
fn set_lowers(context: &FsContext, lowers: &[&str]) -> nix::Result<()> {
    let joined = lowers.join(":");
    if joined.len() <= OPTION_MAX {
        return context.set(c"lowerdir", &text(joined)?);
    }
    lowers
        .iter()
        .try_for_each(|lower| context.set(c"lowerdir+", &text((*lower).to_owned())?))
}

/// Copies the mount of directory `dir` as a detached, idmapped one: ids on disk 0..65,535 become those of `userns`.
///
/// # Errors
/// EINVAL if the file system cannot be idmapped.
pub fn idmapped(dir: BorrowedFd<'_>, userns: impl AsFd, attrs: u64) -> nix::Result<OwnedFd> {
    let mount = clone_mount(dir, c"", Depth::One)?;
    set_idmap(mount.as_fd(), userns, attrs | attr::NODEV)?;
    Ok(mount)
}

/// Makes a mount that is attached nowhere an idmapped one: ids on disk 0..65,535 become those of `userns`.
///
/// # Errors
/// EINVAL if the file system cannot be idmapped, or the mount is attached.
pub fn idmap_detached(mount: BorrowedFd<'_>, userns: impl AsFd) -> nix::Result<()> {
    set_idmap(mount, userns, attr::NODEV)
}

fn text(value: String) -> nix::Result<CString> {
    CString::new(value).map_err(|_| Errno::EINVAL)
}
