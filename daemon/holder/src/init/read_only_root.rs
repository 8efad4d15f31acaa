//! The option to have a root file system that cannot be changed.

use std::os::fd::AsFd as _;

use lodge_kernel::mount::{Depth, attach, attr, set_attrs, tmpfs};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::statvfs::{FsFlags, statvfs};

use super::Making;
use crate::protocol::{Cause, on};

/// Makes the root read-only, with a /tmp of memory: much is broken without one. After it was seen to be writable: an overlay that
/// comes up read-only for reasons of its own is an error all the same.
pub(super) fn read_only_root(making: &mut Making<'_>) -> Result<(), Cause> {
    if !making.init.request.read_only_root {
        return Ok(());
    }
    let open = |path: &str| {
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
        openat2(AT_FDCWD, path, how)
    };
    let place = open("/tmp").map_err(on("/tmp"))?;
    let shm_bytes = making.init.request.shm_bytes;
    let tmp = tmpfs(shm_bytes, 0o1777, attr::NOSUID | attr::NODEV).map_err(on("/tmp"))?;
    attach(tmp.as_fd(), place.as_fd(), c"").map_err(on("/tmp"))?;
    let root = open("/").map_err(on("/"))?;
    set_attrs(root.as_fd(), attr::RDONLY | attr::NODEV, Depth::One).map_err(on("/"))?;
    let stat = statvfs("/").map_err(on("/"))?;
    if stat.flags().contains(FsFlags::ST_RDONLY) {
        Ok(())
    } else {
        Err(on("/")(Errno::EROFS))
    }
}
