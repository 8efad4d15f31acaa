//! The device of a pool's file, and its mount.

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use lodge_kernel::block::{self, LoopDevice};
use lodge_kernel::mount::{attach, attr};
use rustix::fs::OFlags;

use super::{Backing, open_dir};
use crate::fault;
use crate::storage::StorageError;

/// Options of the mount, with the reason of each.
const OPTIONS: &[(&CStr, Option<&CStr>)] = &[
    // What is deleted becomes a hole of the file, so that the host gets it back; in the background.
    (c"discard", Some(c"async")),
];
/// Attributes of the daemon's own mount. A sandbox's is a copy that says for itself what may be executed with more rights.
const ATTRIBUTES: u64 = attr::NODEV | attr::NOSUID | attr::NOATIME;

/// Mounts the file on `dir`. A device that has the file already is used: sandboxes of an earlier daemon keep it.
pub(super) fn mount(path: PathBuf, dir: &Path) -> Result<Backing, StorageError> {
    let file = open(&path).map_err(|e| StorageError::io("open", &path, e))?;
    let device = fault::around("pool.find device", || LoopDevice::of(&file))
        .map_err(|e| StorageError::io("make a loop device of", &path, e))?;
    // The file may have grown while an earlier daemon died.
    device
        .resized()
        .map_err(|e| StorageError::io("take the size of", &path, e))?;
    let target = open_dir(dir)?;
    let mounted = fault::around("pool.mount", || -> io::Result<()> {
        let mount = block::mount(c"btrfs", &device.path(), OPTIONS, ATTRIBUTES)?;
        Ok(attach(mount.as_fd(), target.as_fd(), c"")?)
    });
    mounted.map_err(|source| StorageError::Io {
        action: "mount the pool; `btrfs check` tells whether it is whole:",
        path: path.clone(),
        source,
    })?;
    tracing::info!(pool = %path.display(), device = device.name(), direct = device.is_direct(), "pool mounted");
    Ok(Backing { path, file, device })
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)
}
