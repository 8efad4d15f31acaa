//! A layer that is mounted. The mount is attached nowhere and lives as long as its descriptor, or the sandbox that got it.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;

use lodge_kernel::block::LoopDevice;
use lodge_kernel::mount::attr;
use lodge_kernel::{block, ext4};
use nix::errno::Errno;
use rustix::fs::{AtFlags, FileType, Mode, StatVfs};

use super::geometry::{BLOCK, Shape, blocks_of, held_back};
use super::layer::Layer;
use super::{directories, e2fsprogs};
use crate::fault;
use crate::storage::driver::{DiskLimit, StorageError};

/// How a layer is mounted, with the reason of each.
const OPTIONS: &[(&CStr, Option<&CStr>)] = &[
    // Zeros in a new file are holes: writing them would take the host's space for nothing.
    (c"noinit_itable", None),
    // What is freed inside is given back to the host.
    (c"discard", None),
    // After an error nothing is made worse.
    (c"errors", Some(c"remount-ro")),
];

/// More than the directories of an overlay take.
const BLOCKS_TO_START: u64 = 16;
/// A directory that is gone before anybody has the layer.
const FIRST: &str = "first";

/// A mounted layer.
#[derive(Debug)]
pub(super) struct Mounted {
    device: LoopDevice,
    root: OwnedFd,
}

impl Mounted {
    /// Mounts an image. One that is mounted already is the same file system, with one more mount.
    pub(super) fn mount(layer: &Layer, image: &File) -> Result<Self, StorageError> {
        let path = layer.image();
        let _lock = e2fsprogs::kept_from_programs(&path)?;
        let device = fault::around("overlay.attach device", || LoopDevice::of(image))
            .map_err(|e| StorageError::io("attach a loop device to", &path, e))?;
        // A device that was found may have the size that its file had before a growth that was cut short.
        device
            .resized()
            .map_err(|e| StorageError::io("tell the loop device the size of", &path, e))?;
        let root = fault::around("overlay.mount", || mount(&device.path()))
            .map_err(|e| StorageError::io("mount", &path, e))?;
        Ok(Self { device, root })
    }

    /// Fails unless it has what an overlay needs: it is another file system, or somebody mended too much.
    pub(super) fn check(&self, layer: &Layer) -> Result<(), StorageError> {
        for (name, _) in directories::OF_A_LAYER {
            let is_directory = rustix::fs::statat(&self.root, name, AtFlags::SYMLINK_NOFOLLOW)
                .map(|found| FileType::from_raw_mode(found.st_mode) == FileType::Directory);
            match is_directory {
                Ok(true) => {}
                Ok(false) => return Err(lacks(layer, rustix::io::Errno::NOTDIR)),
                Err(errno) => return Err(lacks(layer, errno)),
            }
        }
        Ok(())
    }

    /// Has the kernel read where there is room, which the first mkdir(2) waits for: that of the overlay, at a start.
    pub(super) fn read_ahead(&self, layer: &Layer) -> Result<(), StorageError> {
        let made = rustix::fs::mkdirat(&self.root, FIRST, Mode::RWXU)
            .and_then(|()| rustix::fs::unlinkat(&self.root, FIRST, AtFlags::REMOVEDIR));
        made.map_err(|e| StorageError::io("make a directory in", &layer.image(), e))
    }

    /// What is used and free in it.
    pub(super) fn space(&self, layer: &Layer) -> Result<StatVfs, StorageError> {
        rustix::fs::fstatvfs(&self.root).map_err(|e| StorageError::io("stat", &layer.image(), e))
    }

    /// Bytes that it may allocate now.
    pub(super) fn allowed(&self, layer: &Layer) -> Result<u64, StorageError> {
        let held_back = held_back_now(&self.device.name())
            .map_err(|e| StorageError::io("read what is held back in", &layer.image(), e))?;
        Ok(self.space(layer)?.f_bfree.saturating_sub(held_back) * BLOCK)
    }

    /// Holds a limit, by holding the blocks beyond it back from everybody, root included. Until the next look after the reserve
    /// it allocates no more than its share, in bytes: to allocate takes no time, whatever the disk does.
    pub(super) fn hold(
        &self,
        layer: &Layer,
        limit: DiskLimit,
        share: u64,
    ) -> Result<(), StorageError> {
        self.hold_back(layer, not_to_take(&self.space(layer)?, limit, share))
    }

    /// The same before a start, which makes a directory: where the limit is reached there is room for that beyond it, until the next
    /// look. A full sandbox that was stopped could else not be started any more, to delete something.
    pub(super) fn hold_until_started(
        &self,
        layer: &Layer,
        limit: DiskLimit,
        share: u64,
    ) -> Result<(), StorageError> {
        let space = self.space(layer)?;
        let blocks = not_to_take(&space, limit, share);
        let all_but_a_start = space.f_bfree.saturating_sub(BLOCKS_TO_START);
        self.hold_back(layer, blocks.min(all_but_a_start))
    }

    fn hold_back(&self, layer: &Layer, blocks: u64) -> Result<(), StorageError> {
        fault::around("overlay.hold limit", || {
            hold_back(&self.device.name(), blocks)
        })
        .map_err(|e| StorageError::io("limit", &layer.image(), e))
    }

    /// Has it grow in use. The file has room for it already.
    pub(super) fn grow(&self, shape: &Shape) -> io::Result<()> {
        fault::around("overlay.resize mounted", || {
            self.device.resized()?;
            Ok(ext4::resize(self.root.as_fd(), shape.blocks)?)
        })
    }

    /// Tells its device the size of the file, after a growth that failed.
    pub(super) fn resized(&self) -> io::Result<()> {
        self.device.resized()
    }

    pub(super) fn into_root(self) -> OwnedFd {
        self.root
    }
}

/// Blocks that a layer with this limit may not have now, of which `share` bytes are free to be taken.
fn not_to_take(space: &StatVfs, limit: DiskLimit, share: u64) -> u64 {
    // The kernel takes no figure that is not less than all of it.
    let not_there = space
        .f_bfree
        .saturating_sub(share / BLOCK)
        .min(space.f_blocks);
    beyond(limit, space.f_blocks).max(not_there)
}

fn lacks(layer: &Layer, errno: rustix::io::Errno) -> StorageError {
    StorageError::io("find the directories of a layer in", &layer.image(), errno)
}

/// Mounts the ext4 of a device.
pub(super) fn mount(device: &std::path::Path) -> io::Result<OwnedFd> {
    Ok(block::mount(c"ext4", device, OPTIONS, attr::NODEV)?)
}

/// Blocks to be held back from a file system with so many, for a limit to be held: at least what the kernel holds back in
/// any.
pub(super) fn beyond(limit: DiskLimit, blocks: u64) -> u64 {
    blocks
        .saturating_sub(blocks_of(limit))
        .max(held_back(blocks))
}

/// Holds blocks back in the mounted ext4 of a device: from then on nothing may take one of them. Of one that is unmounted meanwhile the
/// error says so ([`is_unmounted`]).
pub(super) fn hold_back(device: &str, blocks: u64) -> io::Result<()> {
    // Never created: asked to, the kernel would say that it may not, where it should say that there is none.
    let mut file = File::options().write(true).open(held_back_file(device))?;
    file.write_all(blocks.to_string().as_bytes())
}

/// Whether a figure could not be read or written because its file system is not mounted any more.
pub(super) fn is_unmounted(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(Errno::ENODEV as i32)
}

/// Blocks that are held back.
pub(super) fn held_back_now(device: &str) -> io::Result<u64> {
    let text = std::fs::read_to_string(held_back_file(device))?;
    text.trim().parse().map_err(io::Error::other)
}

fn held_back_file(device: &str) -> PathBuf {
    ["/sys/fs/ext4", device, "reserved_clusters"]
        .iter()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There is a directory of that name in which nothing can be held back, as there is for a moment of a layer that is being unmounted.
    #[test]
    fn a_layer_that_is_unmounted_meanwhile_is_told_as_such() {
        for device in ["features", "lodge-none"] {
            let held = hold_back(device, 1).expect_err("it is no device");
            assert!(is_unmounted(&held), "{device}: {held:?}");
            let now = held_back_now(device).expect_err("it is no device");
            assert!(is_unmounted(&now), "{device}: {now:?}");
        }
    }
}
