//! Holding layers back from the host's reserve: images are sparse, so that together they promise more than the host has.
//!
//! What is free beyond the reserve is shared out among the layers that are mounted: each may allocate its share until the
//! next look, and no more, however fast it writes. One that is mounted, or gets another limit, between two looks may allocate what
//! is free then until the next one, whatever others were promised: that is the gap, of a second. What a layer has allocated and not written (fallocate(2), dirty
//! pages) will be taken from the host without being asked for again, and is counted as taken.
//! Inode tables and the journal of layers come on top, and are what a reserve is for.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::StatVfs;

use super::geometry::BLOCK;
use super::layer::{IMAGE, Layer};
use super::mounted::{beyond, held_back_now, hold_back, mount};
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

/// Shares out what is free beyond `reserve` bytes where `state_dir` lies among its layers. Nobody mounts or mends one
/// meanwhile.
pub(super) fn keep(state_dir: &Path, reserve: u64) -> Result<(), StorageError> {
    let host = space_at(state_dir)?;
    let free = (host.f_bavail * host.f_frsize).saturating_sub(reserve);
    share_out(state_dir, free)
}

/// Lets the layers below a directory take `free` bytes of the host together, until it is called again.
pub(super) fn share_out(state_dir: &Path, free: u64) -> Result<(), StorageError> {
    let layers = live_layers(state_dir)?;
    let wanted: u64 = layers.iter().map(Live::may_take).sum();
    if wanted <= free {
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
    let share = free.saturating_sub(taken) / (layers.len() as u64).max(1);
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
    /// Bytes that it may take beyond those that it has: all of its limit, and no more than its image.
    fn may_take(&self) -> u64 {
        let limit = self.limit().bytes.min(self.size);
        limit.saturating_sub(self.written)
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
        let (Ok(now), Ok((_, superblock))) = (held_back_now(&self.device), self.layer.open())
        else {
            return false;
        };
        now == beyond(self.limit(), superblock.shape.usable())
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
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
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
            found.push(Live {
                device,
                layer: Layer::of(image.parent().expect("a file below a directory")),
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
