//! The root file system: an overlay of idmapped layers, mounted by the sandbox's own root in its own mount namespace; or one
//! idmapped tree as a whole.

use std::ffi::CStr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use lodge_kernel::mount::{self, attach, attr, tmpfs};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{Mode, SFlag, fchmodat, fstatat, mkdirat};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{UnlinkatFlags, chdir, fchdir, pivot_root, unlinkat};

use super::Making;
use crate::protocol::{Cause, on};

/// Size of the stage, in bytes. It keeps the files over /etc for as long as the sandbox lives, and root inside may write to these.
const STAGE_BYTES: u64 = 256 * 1024;

/// Directories that we mount on; what else an image may have put there is replaced, in the sandbox's own layer.
const MOUNT_POINTS: &[&CStr] = &[c"dev", c"proc", c"sys", c"etc"];

/// Stops mounts from spreading between this namespace and the host's, in both directions.
pub(super) fn make_private(_: &mut Making<'_>) -> Result<(), Cause> {
    mount(
        None::<&str>,
        "/",
        None::<&str>,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        None::<&str>,
    )
    .map_err(on("/"))
}

/// Mounts the stage over our view of the host's root, which is left for good at the pivot.
pub(super) fn stage(making: &mut Making<'_>) -> Result<(), Cause> {
    let stage = tmpfs(
        STAGE_BYTES,
        0o755,
        attr::NOSUID | attr::NODEV | attr::NOEXEC,
    )
    .map_err(on("tmpfs"))?;
    attach(stage.as_fd(), AT_FDCWD, c"/").map_err(on("stage"))?;
    fchdir(&stage).map_err(on("stage"))?;
    making.stage = Some(stage);
    Ok(())
}

/// Hangs the layers on the stage as `l0`, `l1`, … and `w`: short relative names that tell nothing of the host.
pub(super) fn layers(making: &mut Making<'_>) -> Result<(), Cause> {
    for (n, layer) in making.lowers.iter().enumerate() {
        hang(layer, &format!("l{n}"))?;
    }
    match &making.writable {
        Some(writable) if !making.lowers.is_empty() => hang(writable, "w"),
        _ => Ok(()),
    }
}

fn hang(layer: &OwnedFd, name: &str) -> Result<(), Cause> {
    mkdirat(AT_FDCWD, name, Mode::from_bits_truncate(0o755)).map_err(on(name))?;
    let dir = openat(
        AT_FDCWD,
        name,
        OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        Mode::empty(),
    )
    .map_err(on(name))?;
    attach(layer.as_fd(), dir.as_fd(), c"").map_err(on(name))
}

/// Hangs the root on the stage: the overlay, or what is writable where there is nothing below it.
pub(super) fn root(making: &mut Making<'_>) -> Result<(), Cause> {
    let writable = making.writable.take().ok_or(Errno::EBADF);
    let writable = writable.map_err(on("writable layer"))?;
    let root = if making.lowers.is_empty() {
        writable
    } else {
        overlay(making)?
    };
    hang(&root, "root")?;
    making.root = Some(root);
    Ok(())
}

fn overlay(making: &mut Making<'_>) -> Result<OwnedFd, Cause> {
    let names: Vec<String> = (0..making.lowers.len()).map(|n| format!("l{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let root = mount::overlay(&names, c"w/upper", c"w/work").map_err(on("overlay"))?;
    // The descriptors of the layers lead to the host's file system: nothing needs them any more.
    making.lowers.clear();
    Ok(root)
}

/// Makes every mount point a real directory.
pub(super) fn mount_points(making: &mut Making<'_>) -> Result<(), Cause> {
    let root = making.root()?;
    for name in MOUNT_POINTS {
        let object = || on(name.to_string_lossy());
        match fstatat(root, *name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat)
                if SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR =>
            {
                continue;
            }
            Ok(_) => unlinkat(root, *name, UnlinkatFlags::NoRemoveDir).map_err(object())?,
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(object()(errno)),
        }
        mkdirat(root, *name, Mode::from_bits_truncate(0o755)).map_err(object())?;
    }
    sticky_tmp(root)
}

/// Makes /tmp where the image has none.
fn sticky_tmp(root: BorrowedFd<'_>) -> Result<(), Cause> {
    match mkdirat(root, c"tmp", Mode::from_bits_truncate(0o755)) {
        // mkdir(2) is subject to the umask; the sticky bit and write for all are not.
        Ok(()) => fchmodat(
            root,
            c"tmp",
            Mode::from_bits_truncate(0o1777),
            nix::sys::stat::FchmodatFlags::FollowSymlink,
        )
        .map_err(on("tmp")),
        Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(on("tmp")(errno)),
    }
}

/// Makes the overlay the root and lets go of everything else.
pub(super) fn pivot(making: &mut Making<'_>) -> Result<(), Cause> {
    let root = making.root.take().ok_or(Errno::EBADF).map_err(on("root"))?;
    fchdir(&root).map_err(on("root"))?;
    // Old and new root are stacked on one another: the host's root lies on ours, and the stage on that. Both are taken
    // away, the topmost first: what stayed would be what `/..` leads to.
    pivot_root(".", ".").map_err(on("root"))?;
    umount2(".", MntFlags::MNT_DETACH).map_err(on("stage"))?;
    umount2(".", MntFlags::MNT_DETACH).map_err(on("old root"))?;
    check_nothing_above(&root)?;
    making.stage = None;
    chdir("/").map_err(on("/"))
}

/// Makes sure that `/..` is our own root: everything else there would be the host's.
fn check_nothing_above(root: &OwnedFd) -> Result<(), Cause> {
    let ours = fstatat(root, c"", AtFlags::AT_EMPTY_PATH).map_err(on("root"))?;
    let above = fstatat(AT_FDCWD, c"/..", AtFlags::empty()).map_err(on("/.."))?;
    if (ours.st_dev, ours.st_ino) == (above.st_dev, above.st_ino) {
        Ok(())
    } else {
        Err(on("/..")(Errno::EXDEV))
    }
}

/// An overlay whose upper layer it cannot use comes up read-only without a word.
pub(super) fn check_writable(_: &mut Making<'_>) -> Result<(), Cause> {
    let stat = statvfs("/").map_err(on("/"))?;
    if stat.flags().contains(FsFlags::ST_RDONLY) {
        return Err(on("/")(Errno::EROFS));
    }
    Ok(())
}

impl Making<'_> {
    pub(super) fn root(&self) -> Result<BorrowedFd<'_>, Cause> {
        self.root
            .as_ref()
            .map(OwnedFd::as_fd)
            .ok_or(Errno::EBADF)
            .map_err(on("root"))
    }

    pub(super) fn stage(&self) -> Result<BorrowedFd<'_>, Cause> {
        self.stage
            .as_ref()
            .map(OwnedFd::as_fd)
            .ok_or(Errno::EBADF)
            .map_err(on("stage"))
    }
}

/// Opens a path below `root` without following any link and without leaving it.
pub(super) fn open_below(root: BorrowedFd<'_>, path: &str, flags: OFlag) -> nix::Result<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_SYMLINKS;
    openat2(
        root,
        path,
        OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .resolve(resolve),
    )
}
