//! The mount calls that work on descriptors: fsopen(2), fsconfig(2), fsmount(2), open_tree(2), move_mount(2),
//! mount_setattr(2). A mount made with them has no path until it is attached, so no path can be swapped under it.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use nix::errno::Errno;

use super::check;

const FSOPEN_CLOEXEC: libc::c_uint = 1;
const FSMOUNT_CLOEXEC: libc::c_uint = 1;
const FSCONFIG_SET_FLAG: libc::c_uint = 0;
const FSCONFIG_SET_STRING: libc::c_uint = 1;
const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
const MOVE_MOUNT_F_EMPTY_PATH: libc::c_uint = 0x4;
const MOVE_MOUNT_T_EMPTY_PATH: libc::c_uint = 0x40;

/// Attributes of a mount, as in linux/mount.h.
pub mod attr {
    /// Read-only.
    pub const RDONLY: u64 = 0x1;
    /// Set-user-id bits and file capabilities have no effect.
    pub const NOSUID: u64 = 0x2;
    /// Device nodes cannot be opened.
    pub const NODEV: u64 = 0x4;
    /// Programs cannot be executed.
    pub const NOEXEC: u64 = 0x8;
    /// Reading a file changes nothing on disk.
    pub const NOATIME: u64 = 0x10;
    pub(super) const IDMAP: u64 = 0x0010_0000;
}

fn owned(ret: libc::c_long) -> nix::Result<OwnedFd> {
    let fd = i32::try_from(check(ret)?).map_err(|_| Errno::EOVERFLOW)?;
    // SAFETY: the kernel has just returned this descriptor; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A file system being configured.
#[derive(Debug)]
pub struct FsContext(OwnedFd);

impl FsContext {
    /// Opens a context for a file system type.
    ///
    /// # Errors
    /// ENODEV if the kernel does not know it; EPERM without CAP_SYS_ADMIN in the mount namespace's user namespace.
    pub fn open(fs_type: &CStr) -> nix::Result<Self> {
        // SAFETY: a valid C string and a flag.
        let ret = unsafe { libc::syscall(libc::SYS_fsopen, fs_type.as_ptr(), FSOPEN_CLOEXEC) };
        owned(ret).map(Self)
    }

    /// Sets an option to a value.
    ///
    /// # Errors
    /// EINVAL for an option or value that the file system refuses.
    pub fn set(&self, key: &CStr, value: &CStr) -> nix::Result<()> {
        self.config(FSCONFIG_SET_STRING, key.as_ptr(), value.as_ptr())
    }

    /// Sets an option that has no value.
    ///
    /// # Errors
    /// EINVAL for an option that the file system refuses.
    pub fn flag(&self, key: &CStr) -> nix::Result<()> {
        self.config(FSCONFIG_SET_FLAG, key.as_ptr(), std::ptr::null())
    }

    /// Makes the file system and returns a mount of it that is attached nowhere. `attrs`: see [`attr`].
    ///
    /// # Errors
    /// The file system's.
    pub fn mount(self, attrs: u64) -> nix::Result<OwnedFd> {
        self.config(FSCONFIG_CMD_CREATE, std::ptr::null(), std::ptr::null())?;
        // SAFETY: integers only.
        owned(unsafe {
            libc::syscall(
                libc::SYS_fsmount,
                self.0.as_raw_fd(),
                FSMOUNT_CLOEXEC,
                attrs,
            )
        })
    }

    fn config(
        &self,
        cmd: libc::c_uint,
        key: *const libc::c_char,
        value: *const libc::c_char,
    ) -> nix::Result<()> {
        // SAFETY: `key` and `value` are null or C strings that the callers borrow for the whole call.
        let ret =
            unsafe { libc::syscall(libc::SYS_fsconfig, self.0.as_raw_fd(), cmd, key, value, 0) };
        check(ret).map(drop)
    }
}

/// How much of a tree of mounts is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// The one mount.
    One,
    /// The mount with all below it.
    Tree,
}

/// Copies the mount of `path` below `dir` (`path` empty: of `dir` itself), rooted there and attached nowhere. Symbolic links at the end are
/// not followed.
///
/// # Errors
/// The kernel's.
pub fn clone_mount(dir: BorrowedFd<'_>, path: &CStr, depth: Depth) -> nix::Result<OwnedFd> {
    let recursive = if depth == Depth::Tree {
        libc::AT_RECURSIVE
    } else {
        0
    };
    #[allow(clippy::cast_sign_loss, reason = "flags are non-negative")]
    let flags = (libc::OPEN_TREE_CLONE as libc::c_int
        | libc::O_CLOEXEC
        | libc::AT_EMPTY_PATH
        | libc::AT_SYMLINK_NOFOLLOW
        | recursive) as libc::c_uint;
    // SAFETY: an open descriptor, a valid C string, flags.
    owned(unsafe { libc::syscall(libc::SYS_open_tree, dir.as_raw_fd(), path.as_ptr(), flags) })
}

/// Attaches a detached mount on `path` below `dir` (`path` empty: on `dir` itself). Symbolic links are not followed at the end.
///
/// # Errors
/// The kernel's.
pub fn attach(mount: BorrowedFd<'_>, dir: BorrowedFd<'_>, path: &CStr) -> nix::Result<()> {
    let flags = MOVE_MOUNT_F_EMPTY_PATH
        | if path.is_empty() {
            MOVE_MOUNT_T_EMPTY_PATH
        } else {
            0
        };
    // SAFETY: open descriptors, valid C strings, flags.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            mount.as_raw_fd(),
            c"".as_ptr(),
            dir.as_raw_fd(),
            path.as_ptr(),
            flags,
        )
    };
    check(ret).map(drop)
}

#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Sets attributes of a mount, or of it with all below it.
///
/// # Errors
/// The kernel's.
pub fn set_attrs(mount: BorrowedFd<'_>, set: u64, depth: Depth) -> nix::Result<()> {
    let change = MountAttr {
        attr_set: set,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    setattr(mount, &change, depth)
}

/// Maps the ids of a detached mount through a user namespace (idmapped mount, Linux 5.12; overlay layers 5.19), clears nosuid and sets
/// `set`.
///
/// # Errors
/// EINVAL if the file system cannot be idmapped; EPERM unless root of the initial user namespace.
pub fn set_idmap(mount: BorrowedFd<'_>, userns: impl AsFd, set: u64) -> nix::Result<()> {
    let fd = u64::try_from(userns.as_fd().as_raw_fd()).map_err(|_| Errno::EBADF)?;
    let change = MountAttr {
        attr_set: set | attr::IDMAP,
        attr_clr: attr::NOSUID & !set,
        propagation: 0,
        userns_fd: fd,
    };
    setattr(mount, &change, Depth::One)
}

fn setattr(mount: BorrowedFd<'_>, change: &MountAttr, depth: Depth) -> nix::Result<()> {
    let flags = libc::AT_EMPTY_PATH
        | if depth == Depth::Tree {
            libc::AT_RECURSIVE
        } else {
            0
        };
    // SAFETY: an open descriptor, a valid C string, and a struct of the size that is passed.
    let ret = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            std::ptr::from_ref(change),
            size_of::<MountAttr>(),
        )
    };
    check(ret).map(drop)
}
