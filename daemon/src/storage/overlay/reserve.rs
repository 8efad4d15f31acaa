//! Holding layers back from the host's reserve: images are sparse, so that together they promise more than the host has.
//!
//! What is free beyond the reserve is shared out among the layers that are mounted: each may allocate its share until the
//! next look, and no more, however fast it writes. One that is mounted, or gets another limit, between two looks may allocate what
//! was promised to no other (`promised.rs`). What a layer has allocated and not written (fallocate(2), dirty
//! pages) will be taken from the host without being asked for again, and is counted as taken.
//!
//! Inode tables and the journal are beyond every limit. Where all layers may take all that they come to take, that is counted in.
//! Where the host has less, what is written of it is counted at the next look, and until then is what a reserve is for: a
//! second's worth of new files.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::StatVfs;

use super::geometry::{BLOCK, Shape};
use super::layer::{IMAGE, Layer};
use super::mounted::{beyond, held_back_now, hold_back, is_unmounted, mount};
use super::promised::{PART_OF_NEW, Promised};
use super::{Settings, spares};
use crate::storage::driver::{DiskLimit, StorageError};

const DEVICES: &str = "/sys/block";
/// Bytes of the unit in which stat(2) gives what a file takes.
const SECTOR: u64 = 512;

/// A layer that is mounted somewhere.
#[derive(Debug)]
struct Live {
    device: String,
    layer: Layer,
    /// Bytes that the image takes on the host.
    written: u64,
    /// Bytes that it may come to take.
    size: u64,
    /// The layout of its file system, if that can be told.
    shape: Option<Shape>,
}

/// What is used and free where a path lies.
pub(super) fn space_at(path: &Path) -> Result<StatVfs, StorageError> {
    rustix::fs::statvfs(path).map_err(|e| StorageError::io("stat", path, e))
}

/// Bytes that the host has beyond its reserve.
pub(super) fn room(settings: &Settings) -> Result<u64, StorageError> {
    let host = space_at(&settings.state_dir)?;
    Ok((host.f_bavail * host.f_frsize).saturating_sub(settings.reserve_bytes))
}

/// Bytes that a layer with this limit may come to take of the host beyond those that it has.
pub(super) fn may_take(layer: &Layer, limit: DiskLimit) -> Result<u64, StorageError> {
    let (image, superblock) = layer.open()?;
    let on_host = image
        .metadata()
        .map_err(|e| StorageError::io("stat", &layer.image(), e))?;
    let all = may_have(limit, superblock.shape.metadata(), on_host.len());
    Ok(all.saturating_sub(on_host.blocks() * SECTOR))
}

/// All of its limit and what its file system keeps for itself, and no more than its image.
fn may_have(limit: DiskLimit, metadata: u64, size: u64) -> u64 {
    limit.bytes.saturating_add(metadata).min(size)
}

/// Shares out what is free beyond the reserve among the layers of a state directory. Nobody mends one meanwhile.
pub(super) fn keep(settings: &Settings, promised: &Promised) -> Result<(), StorageError> {
    share_out(&settings.state_dir, room(settings)?, promised)
}

/// Lets the layers below a directory take `free` bytes of the host together, until it is called again.
pub(super) fn share_out(
    state_dir: &Path,
    free: u64,
    promised: &Promised,
) -> Result<(), StorageError> {
    promised.begin_look();
    let layers = live_layers(state_dir)?;
    let wanted: u64 = layers.iter().map(Live::may_take).sum();
    if wanted <= free {
        promised.end_look(wanted);
        return each(layers.iter().filter(|live| !live.is_at_rest()).map(|live| {
            let space = live.space()?;
            live.hold(space.as_ref(), u64::MAX)
        }));
    }
    let spaces: Vec<_> = layers.iter().map(Live::space).collect();
    let found = || layers.iter().zip(&spaces);
    let taken: u64 = found()
        .filter_map(|(live, space)| Some(live.not_written(space.as_ref().ok()?.as_ref()?)))
        .sum();
    let not_taken = free.saturating_sub(taken);
    let for_new = not_taken / PART_OF_NEW;
    let share = (not_taken - for_new) / (layers.len() as u64).max(1);
    promised.end_look(free - for_new);
    each(layers.iter().zip(spaces).map(|(live, space)| {
        let space = space?;
        live.hold(space.as_ref(), share / BLOCK)
    }))
}

/// Does all; the first failure is told at the end. One layer that cannot be held back does not let the others go.
fn each(acts: impl Iterator<Item = Result<(), StorageError>>) -> Result<(), StorageError> {
    acts.fold(Ok(()), Result::and)
}

impl Live {
    /// Bytes that it may take beyond those that it has.
    fn may_take(&self) -> u64 {
        let metadata = self.shape.as_ref().map_or(0, Shape::metadata);
        may_have(self.limit(), metadata, self.size).saturating_sub(self.written)
    }

    /// Bytes that are allocated in it and that the host has not given yet.
    fn not_written(&self, space: &StatVfs) -> u64 {
        let used = (space.f_blocks - space.f_bfree) * BLOCK;
        used.saturating_sub(self.written)
    }

    /// Looks into it, by one more mount for a moment. None: it is not mounted any more.
    fn space(&self) -> Result<Option<StatVfs>, StorageError> {
        let failed = |e| StorageError::io("look into", &self.layer.image(), e);
        let path = Path::new("/dev").join(&self.device);
        let Ok(device) = File::open(&path) else {
            return Ok(None);
        };
        // Held open it keeps its file; if it got another one before, it is not looked into.
        if backing(&self.device) != Some(self.layer.image()) || held_back_now(&self.device).is_err()
        {
            return Ok(None);
        }
        let root = mount(&path).map_err(failed)?;
        let space = rustix::fs::fstatvfs(&root).map_err(|e| failed(e.into()))?;
        drop(device);
        Ok(Some(space))
    }

    /// Whether what is held back in it is what its limit alone says, as far as can be told without looking into it.
    fn is_at_rest(&self) -> bool {
        let (Ok(now), Some(shape)) = (held_back_now(&self.device), &self.shape) else {
            return false;
        };
        now == beyond(self.limit(), shape.usable())
    }

    /// A layer whose limit nobody knows has that of its image.
    fn limit(&self) -> DiskLimit {
        self.layer.limit().unwrap_or(DiskLimit {
            bytes: u64::MAX,
            inodes: u64::MAX,
        })
    }

    /// Lets it allocate `share` blocks more, as far as its limit goes.
    fn hold(&self, space: Option<&StatVfs>, share: u64) -> Result<(), StorageError> {
        let Some(space) = space else {
            return Ok(());
        };
        // The kernel takes no figure that is not less than all of it.
        let not_shared = space.f_bfree.saturating_sub(share).min(space.f_blocks);
        let wanted = beyond(self.limit(), space.f_blocks).max(not_shared);
        match hold_back(&self.device, wanted) {
            // Unmounted meanwhile.
            Err(error) if is_unmounted(&error) => Ok(()),
            held => held.map_err(|e| StorageError::io("hold back", &self.layer.image(), e)),
        }
    }
}

/// The layers below a directory that have a device.
fn live_layers(state_dir: &Path) -> Result<Vec<Live>, StorageError> {
    let failed = |e| StorageError::io("list", Path::new(DEVICES), e);
    let mut found = Vec::new();
    for entry in fs::read_dir(DEVICES).map_err(failed)? {
        let Ok(device) = entry.map_err(failed)?.file_name().into_string() else {
            continue;
        };
        let Some(image) = backing(&device) else {
            continue;
        };
        // Nobody writes to one that is nobody's yet.
        let is_layer = image.file_name().is_some_and(|name| name == IMAGE)
            && !image.starts_with(state_dir.join(spares::DIR));
        // A file that is gone by now, or was replaced, is in nobody's way.
        if let (true, Ok(on_host)) = (is_layer && image.starts_with(state_dir), image.metadata()) {
            let layer = Layer::of(image.parent().expect("a file below a directory"));
            let shape = layer.open().ok().map(|(_, superblock)| superblock.shape);
            found.push(Live {
                device,
                layer,
                shape,
                written: on_host.blocks() * SECTOR,
                size: on_host.len(),
            });
        }
    }
    Ok(found)
}

/// The file of a loop device.
fn backing(device: &str) -> Option<PathBuf> {
    let path: PathBuf = [DEVICES, device, "loop/backing_file"].iter().collect();
    let text = fs::read_to_string(path).ok()?;
    Some(PathBuf::from(text.strip_suffix('\n')?))
}
