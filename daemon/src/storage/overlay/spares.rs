//! Layers made ahead, and mounted: a create that copies one and a start that mounts it wait several times for the disk, which
//! others write to. After a restart they are nobody's, and removed; their mounts ended with the process that made them.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::layer::Layer;
use super::maker::Maker;
use super::mounted::Mounted;
use super::{Settings, reserve};
use crate::error::chain;
use crate::fault;
use crate::storage::driver::{DiskLimit, StorageError};
use crate::storage::remove_tree::remove_tree;
use crate::storage::spares::Ahead;

/// Their directory, in the state directory.
pub(super) const DIR: &str = "spares";

/// Bytes beyond the reserve below which none is made: it would take, for a moment, the last that a create has.
const ROOM_TO_MAKE: u64 = 256 << 20;

/// A layer that is nobody's yet.
#[derive(Debug)]
pub(super) struct Spare {
    dir: PathBuf,
    image: File,
    mounted: Mounted,
}

/// Layers with their limits.
#[derive(Debug)]
pub(super) struct LayersAhead {
    maker: Arc<Maker>,
    settings: Settings,
    dir: PathBuf,
    /// How many were made: each has a name of its own.
    made: AtomicU64,
}

impl LayersAhead {
    /// Removes what an earlier process left.
    pub(super) fn open(maker: Arc<Maker>, settings: Settings) -> Result<Self, StorageError> {
        let dir = settings.state_dir.join(DIR);
        sweep(&settings.state_dir).map_err(|e| StorageError::io("empty", &dir, e))?;
        Ok(Self {
            maker,
            settings,
            dir,
            made: AtomicU64::new(0),
        })
    }
}

fn sweep(state_dir: &Path) -> io::Result<()> {
    remove_tree(File::open(state_dir)?, DIR)?;
    DirBuilder::new().mode(0o700).create(state_dir.join(DIR))
}

impl Ahead for LayersAhead {
    type Kind = DiskLimit;
    type Spare = Spare;

    const KINDS_MAX: usize = 2;
    const QUIET: Duration = Duration::from_millis(30);
    const AT_LATEST: Duration = Duration::from_millis(300);

    fn dir(&self) -> &Path {
        &self.dir
    }

    /// None where the host has little more than its reserve.
    fn make(&self, limit: &DiskLimit) -> Result<Option<Spare>, StorageError> {
        if reserve::room(&self.settings)? < ROOM_TO_MAKE {
            return Ok(None);
        }
        let name = self.made.fetch_add(1, Ordering::Relaxed).to_string();
        let made = fault::around("overlay.make spare", || {
            Spare::make(self.dir.join(name), &self.maker, *limit)
        });
        made.map(Some)
    }

    fn remove(&self, spare: Spare) -> Result<(), StorageError> {
        fs::remove_dir_all(&spare.dir).map_err(|e| StorageError::io("remove", &spare.dir, e))
    }
}

impl Spare {
    fn make(dir: PathBuf, maker: &Maker, limit: DiskLimit) -> Result<Self, StorageError> {
        DirBuilder::new()
            .mode(0o700)
            .create(&dir)
            .map_err(|e| StorageError::io("create", &dir, e))?;
        match Self::make_in(&dir, maker, limit) {
            Ok((image, mounted)) => Ok(Self {
                dir,
                image,
                mounted,
            }),
            Err(error) => {
                remove_dir(&dir);
                Err(error)
            }
        }
    }

    fn make_in(
        dir: &Path,
        maker: &Maker,
        limit: DiskLimit,
    ) -> Result<(File, Mounted), StorageError> {
        let layer = Layer::of(dir);
        maker.make(&layer, limit)?;
        let (image, _) = layer.open()?;
        let mounted = Mounted::mount(&layer, &image)?;
        mounted.check(&layer)?;
        mounted.read_ahead(&layer)?;
        // Nobody writes to it before its start, which says how much of it is there to be taken.
        mounted.hold(&layer, limit, u64::MAX)?;
        Ok((image, mounted))
    }

    /// Makes it the layer of a sandbox, which has none.
    pub(super) fn place(self, layer: &Layer) -> Result<(File, Mounted), StorageError> {
        let own = Layer::of(&self.dir);
        let placed = own.give_to(layer);
        remove_dir(&self.dir);
        placed.map(|()| (self.image, self.mounted))
    }
}

/// What cannot be removed now is at the next start.
fn remove_dir(dir: &Path) {
    if let Err(error) = fs::remove_dir_all(dir) {
        tracing::warn!(dir = %dir.display(), error = %chain(&error), "a layer that nobody wants stays until the next start");
    }
}
