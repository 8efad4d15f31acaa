//! The btrfs file system in which sandboxes of the btrfs driver live: a sparse file of the state directory, mounted by loop in a
//! mount namespace of the daemon's own; or a directory, where the state directory lies on btrfs itself.
//!
//! ```text
//! <state_dir>/pool.img       the file; its length is the pool's size
//! <state_dir>/pool/images/   images
//! <state_dir>/pool/roots/    sandboxes' subvolumes
//! ```
//!
//! The mount goes with the daemon. A sandbox that lives keeps the file system, and by it the loop device, alive; the next
//! daemon finds the device by its file. Without one the kernel gives both back. What is in the directories is the driver's.

/// Making a pool larger.
mod grow;
/// Making the file.
mod make;
/// The file's device, and the mount.
mod mount;
/// A mount namespace of the daemon's own.
mod namespace;

#[cfg(test)]
pub(super) mod tests;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use lodge_kernel::block::LoopDevice;
use nix::sys::statvfs::{Statvfs, fstatvfs, statvfs};
use rustix::fs::OFlags;

pub use namespace::make_private as make_mounts_private;

use super::StorageError;
use super::choice::{PoolKind, pool_dir, pool_file};
use crate::fault;

/// Below this btrfs has no room for its own bookkeeping beside some files, in bytes.
pub const SIZE_MIN: u64 = 256 << 20;
/// Sizes are whole multiples of this, in bytes: the file system's unit is 4 KiB, and people read MiB.
const SIZE_UNIT: u64 = 1 << 20;

/// The unit in which stat(2) gives what a file takes, in bytes.
const SECTOR: u64 = 512;

/// Directories of a pool: those of images and of sandboxes' subvolumes.
const IMAGES: &str = "images";
const ROOTS: &str = "roots";

/// What a pool needs when it is opened.
#[derive(Debug, Clone, Copy)]
pub struct Settings<'a> {
    /// The state directory.
    pub state_dir: &'a Path,
    /// Whether it is a file.
    pub kind: &'a PoolKind,
    /// The file's size if it is made, in bytes; `None` means three quarters of what is free.
    pub bytes: Option<u64>,
}

/// A pool that is there, and mounted.
#[derive(Debug)]
pub struct Pool {
    dir: PathBuf,
    root: File,
    backing: Option<Backing>,
    /// Held while it grows: what one growth takes back must not be what another one has just given.
    growing: Mutex<()>,
}

/// The file of a pool.
#[derive(Debug)]
struct Backing {
    path: PathBuf,
    file: File,
    device: LoopDevice,
}

impl Pool {
    /// Opens the pool of a state directory: makes it if it never was, mounts it, and ends a growth that was cut short. The
    /// caller has the state directory's lock and, for a file, [a mount namespace of its own](make_mounts_private).
    ///
    /// # Errors
    /// [`StorageError::Unfit`] where it cannot be made, or is gone though sandboxes are there.
    pub fn open(settings: Settings<'_>) -> Result<Self, StorageError> {
        let dir = pool_dir(settings.state_dir);
        make_dir(&dir)?;
        let backing = match settings.kind {
            PoolKind::Directory => None,
            PoolKind::File => {
                let path = pool_file(settings.state_dir);
                make::make_if_new(&path, settings)?;
                Some(mount::mount(path, &dir)?)
            }
        };
        let root = open_dir(&dir)?;
        let pool = Self {
            dir,
            root,
            backing,
            growing: Mutex::default(),
        };
        fault::around("pool.make directories", || {
            [pool.images_dir(), pool.roots_dir()]
                .iter()
                .try_for_each(|dir| make_dir(dir))
        })?;
        pool.finish_growing()?;
        Ok(pool)
    }

    /// Its root directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its root directory, open for reading: what ioctl(2) is about.
    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Where images are.
    pub fn images_dir(&self) -> PathBuf {
        self.dir.join(IMAGES)
    }

    /// Where sandboxes' subvolumes are.
    pub fn roots_dir(&self) -> PathBuf {
        self.dir.join(ROOTS)
    }

    /// The pool's file, if it is one.
    pub fn file(&self) -> Option<&Path> {
        self.backing.as_ref().map(|backing| backing.path.as_path())
    }

    /// Size and use, in bytes.
    ///
    /// # Errors
    /// The host's.
    pub fn size(&self) -> Result<Size, StorageError> {
        let found = fstatvfs(&self.root).map_err(|e| StorageError::io("stat", &self.dir, e))?;
        let unit = found.fragment_size();
        Ok(Size {
            bytes: found.blocks() * unit,
            used: (found.blocks() - found.blocks_free()) * unit,
        })
    }

    /// What its file takes on the host, in bytes. None where it is a directory.
    ///
    /// # Errors
    /// The host's.
    pub fn on_host(&self) -> Result<Option<u64>, StorageError> {
        let Some(backing) = &self.backing else {
            return Ok(None);
        };
        let found = backing.file.metadata();
        let found = found.map_err(|e| StorageError::io("stat", &backing.path, e))?;
        Ok(Some(found.blocks() * SECTOR))
    }

    /// What is free, in bytes, where the pool gets its room from: the file system that has the file, or the pool's own.
    ///
    /// # Errors
    /// The host's.
    pub fn host_free(&self) -> Result<u64, StorageError> {
        match self.file() {
            // By the file and not by the state directory: that is where a write of the pool ends.
            Some(file) => free_at(file),
            None => free_at(&self.dir),
        }
    }
}

/// Of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// All of it.
    pub bytes: u64,
    /// What has something in it.
    pub used: u64,
}

fn free_at(path: &Path) -> Result<u64, StorageError> {
    statvfs(path)
        .map(|found| free_of(&found))
        .map_err(|e| StorageError::io("stat", path, e))
}

/// What anybody may take: what a file system keeps for root is not counted, though the pool could get it.
fn free_of(found: &Statvfs) -> u64 {
    found.blocks_available() * found.fragment_size()
}

fn make_dir(dir: &Path) -> Result<(), StorageError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|e| StorageError::io("create", dir, e))
}

fn open_dir(dir: &Path) -> Result<File, StorageError> {
    OpenOptions::new()
        .read(true)
        .custom_flags((OFlags::DIRECTORY | OFlags::NOFOLLOW).bits().cast_signed())
        .open(dir)
        .map_err(|e| StorageError::io("open", dir, e))
}

/// Whether a directory has anything in it. One that is not there has nothing.
fn has_entries(dir: &Path) -> Result<bool, StorageError> {
    match fs::read_dir(dir) {
        Ok(mut entries) => Ok(entries.next().is_some()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(StorageError::io("list", dir, error)),
    }
}
