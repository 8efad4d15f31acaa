//! The overlay driver. Each sandbox has an ext4 of its own in a sparse file, made by copying a template and mounted, attached
//! nowhere, when it starts. The image's size is what the sandbox can never exceed; within it the kernel holds the limit.
//!
//! ```text
//! <state_dir>/templates/            empty layers, to be copied
//! <state_dir>/spares/               layers made ahead
//! <the sandbox's dir>/layer.img     its ext4, with the directories `upper` and `work`
//! <the sandbox's dir>/limit.json    the limit that was asked for last
//! ```
//!
//! The file system is mounted as long as the sandbox lives, whether there is a daemon or not, and its loop device with it.
//! Nothing of it has to be cleaned up. It has the limit also while there is no daemon: what holds it is in the kernel.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use lodge_kernel::block::LoopDevice;
use lodge_kernel::capability::{SYS_RESOURCE, is_effective};
use nix::errno::Errno;
use rustix::fs::{Mode, OFlags};

use super::directories::{self, Directories};
use super::geometry::{self, BLOCK, Room, Shape, inodes_of};
use super::kept::Kept;
use super::layer::Layer;
use super::maker::Maker;
use super::mounted::Mounted;
use super::promised::Promised;
use super::spares::LayersAhead;
use super::superblock::Superblock;
use super::{e2fsprogs, reserve};
use crate::error::chain;
use crate::storage::driver::{
    Abilities, DiskLimit, DiskUsage, HostDisk, OWN_DIR, Place, Root, Storage, StorageError,
    Writable,
};
use crate::storage::remove_tree::remove_tree;
use crate::storage::spares::Spares;

pub(super) const NAME: &str = "overlay";
const NO_POOL: &str = "there is no pool: each sandbox has a file of its own";

/// How long a mount may outlast its sandbox before that is taken for another user of the image, and how often one looks.
const LET_GO_WITHIN: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// What the driver is opened with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The state directory: the sandboxes' own directories are below it.
    pub state_dir: PathBuf,
    /// Bytes that are kept back from sandboxes where it lies.
    pub reserve_bytes: u64,
}

/// Sandboxes with an ext4 each.
#[derive(Debug)]
pub struct Overlay {
    settings: Settings,
    maker: Arc<Maker>,
    spares: Spares<LayersAhead>,
    /// Layers that were spares, from a create to the start that comes next.
    prepared: Kept<Mounted>,
    /// The roots of sandboxes that are being deleted (O_PATH), until their files are removed.
    ended: Kept<OwnedFd>,
    /// Held for reading while a layer is mended and mounted, for writing while all are looked into: a look mounts them, and
    /// what is mounted must not be mended.
    mounting: RwLock<()>,
    promised: Promised,
}

impl Overlay {
    /// Opens the driver.
    ///
    /// # Errors
    /// [`StorageError::Unfit`] without e2fsprogs.
    pub fn open(settings: Settings) -> Result<Self, StorageError> {
        // The kernel resizes nothing that is mounted without it.
        let room = if is_effective(SYS_RESOURCE) {
            Room::Exact
        } else {
            Room::Ahead
        };
        Self::with_room(settings, room)
    }

    pub(super) fn with_room(mut settings: Settings, room: Room) -> Result<Self, StorageError> {
        e2fsprogs::are_there()?;
        let maker = Arc::new(Maker::open(&settings.state_dir, room)?);
        // As the kernel names the files of devices.
        let real = settings.state_dir.canonicalize();
        settings.state_dir =
            real.map_err(|e| StorageError::io("resolve", &settings.state_dir, e))?;
        let ahead = LayersAhead::open(Arc::clone(&maker), settings.clone())?;
        let no_thread = |e| StorageError::io("start the thread of", &settings.state_dir, e);
        let spares = Spares::start(ahead).map_err(no_thread)?;
        Ok(Self {
            settings,
            maker,
            spares,
            prepared: Kept::default(),
            ended: Kept::default(),
            mounting: RwLock::default(),
            promised: Promised::default(),
        })
    }

    /// As a look does, of sandboxes that are not there.
    #[cfg(test)]
    pub(super) fn promise(&self, bytes: u64) {
        self.promised.end_look(bytes);
    }

    #[cfg(test)]
    pub(super) const fn spares(&self) -> &Spares<LayersAhead> {
        &self.spares
    }

    /// A layer that is mounted since before it was a sandbox's, with this limit held.
    fn mounted_ahead(
        &self,
        layer: &Layer,
        limit: DiskLimit,
    ) -> Result<Option<Mounted>, StorageError> {
        let failed = |e| StorageError::io("open", &layer.image(), e);
        let image = File::open(layer.image()).map_err(failed)?;
        let prepared = self.prepared.take(&image).map_err(failed)?;
        // Of a delete that failed: an upper directory is not to be in two overlays at once.
        drop(self.ended.take(&image).map_err(failed)?);
        Ok(prepared.filter(|_| layer.limit() == Some(limit)))
    }

    /// Unmounts what is kept of a layer.
    fn let_go(&self, layer: &Layer) {
        // Without an image nothing is kept.
        let Ok(image) = File::open(layer.image()) else {
            return;
        };
        let kept = (self.prepared.take(&image), self.ended.take(&image));
        drop(kept);
    }

    /// Mounts a layer, mended and grown if that is due, and has its limit held.
    fn mount(&self, layer: &Layer, limit: DiskLimit) -> Result<Mounted, StorageError> {
        if let Some(mounted) = self.mounted_ahead(layer, limit)? {
            mounted.hold_until_started(layer, limit, self.share(layer, limit, 0)?)?;
            return Ok(mounted);
        }
        let (image, superblock) = layer.open()?;
        let grown = self.maker.grown(&superblock.shape, limit)?;
        let is_due = superblock.has_errors || grown.is_some();
        let is_mounted = if is_due {
            !is_let_go(layer, &image)?
        } else {
            false
        };
        if superblock.has_errors && !is_mounted {
            tracing::warn!(image = %layer.image().display(), "mending a layer in which errors were found");
            e2fsprogs::mend(&layer.image())?;
        }
        if let Some(grown) = &grown
            && !is_mounted
        {
            layer.grow(&image, grown)?;
        }
        // Not while programs are at work: others mount, and the reserve is kept meanwhile.
        let _mounting = self.mounting.read().unwrap_or_else(PoisonError::into_inner);
        let mounted = Mounted::mount(layer, &image)?;
        mounted.check(layer)?;
        if let Some(grown) = &grown
            && is_mounted
        {
            grow_mounted(layer, &image, &mounted, grown)?;
        }
        layer.note_limit(limit)?;
        mounted.hold_until_started(layer, limit, self.share(layer, limit, 0)?)?;
        Ok(mounted)
    }

    /// What a layer with this limit may take until the next look, in bytes: no more than was promised to nobody else. `had`: what it
    /// may take already.
    fn share(&self, layer: &Layer, limit: DiskLimit, had: u64) -> Result<u64, StorageError> {
        let wanted = reserve::may_take(layer, limit)?.saturating_sub(had);
        let given = self.promised.give(wanted, reserve::room(&self.settings)?);
        Ok(had.saturating_add(given))
    }

    /// What is used of a layer that was mounted when the host crashed, by having its journal played back.
    fn used_after_crash(&self, layer: &Layer, image: &File) -> Result<u64, StorageError> {
        let _mounting = self.mounting.read().unwrap_or_else(PoisonError::into_inner);
        let space = Mounted::mount(layer, image)?.space(layer)?;
        Ok(space.f_blocks.saturating_sub(space.f_bfree) * BLOCK)
    }

    /// Refuses where the host has, beyond its reserve, no more than so many bytes.
    fn refuse_without(&self, bytes: u64) -> Result<(), StorageError> {
        if reserve::room(&self.settings)? > bytes {
            return Ok(());
        }
        let HostDisk {
            host_free_bytes: free_bytes,
            reserve_bytes,
            ..
        } = self.host()?;
        Err(StorageError::Reserve {
            free_bytes,
            reserve_bytes,
        })
    }
}

impl Storage for Overlay {
    fn name(&self) -> &'static str {
        NAME
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            limit_bytes: Ok(()),
            limit_inodes: Ok(()),
            grow: Err(NO_POOL),
        }
    }

    fn limits_by_file_system(&self) -> bool {
        true
    }

    fn admit(&self) -> Result<(), StorageError> {
        self.refuse_without(0)
    }

    fn prepare(&self, place: Place<'_>, limit: DiskLimit) -> Result<(), StorageError> {
        // What its own file system comes to take is held back by nobody once it is there. Without a reserve nothing is.
        if self.settings.reserve_bytes > 0 {
            self.refuse_without(self.maker.metadata(limit)?)?;
        }
        let layer = Layer::of(place.dir);
        let Some(spare) = self.spares.take(limit) else {
            return self.maker.make(&layer, limit);
        };
        let (image, mounted) = spare.place(&layer)?;
        self.prepared
            .put(&image, mounted)
            .map_err(|e| StorageError::io("look at", &layer.image(), e))
    }

    fn check(&self, place: Place<'_>) -> Result<(), StorageError> {
        let layer = Layer::of(place.dir);
        if layer.is_directory() {
            return Directories.check(place);
        }
        // Never made anew: what is not there is lost, or on a file system that is not mounted.
        layer.open()?;
        directories::open_lowers(place).map(drop)
    }

    fn open(&self, place: Place<'_>, limit: DiskLimit) -> Result<Root, StorageError> {
        let layer = Layer::of(place.dir);
        if layer.is_directory() {
            return Directories.open(place, limit);
        }
        let lowers: Vec<OwnedFd> = directories::open_lowers(place)?;
        let mounted = self.mount(&layer, limit)?;
        Ok(Root::Overlay {
            lowers,
            writable: Writable::Mount(mounted.into_root()),
        })
    }

    fn set_limit(
        &self,
        dir: &Path,
        root: Option<&Path>,
        limit: DiskLimit,
    ) -> Result<(), StorageError> {
        let layer = Layer::of(dir);
        if layer.is_directory() {
            return Directories.set_limit(dir, root, limit);
        }
        let (image, superblock) = layer.open()?;
        let used_bytes = match self.usage(dir, root)?.bytes {
            Some(used) => used,
            None => self.used_after_crash(&layer, &image)?,
        };
        if used_bytes > limit.bytes {
            return Err(StorageError::InUse {
                limit_bytes: limit.bytes,
                used_bytes,
            });
        }
        let _mounting = self.mounting.read().unwrap_or_else(PoisonError::into_inner);
        let is_mounted = find(&layer, &image)?.is_some();
        if !superblock.is_used && !is_mounted {
            return self.maker.make(&layer, limit);
        }
        refuse_fewer_inodes(&layer, &superblock, limit)?;
        let grown = self.maker.grown(&superblock.shape, limit)?;
        if !is_mounted {
            // The next start does the rest.
            return layer.note_limit(limit);
        }
        let mounted = Mounted::mount(&layer, &image)?;
        let had = mounted.allowed(&layer)?;
        if let Some(grown) = grown {
            grow_mounted(&layer, &image, &mounted, &grown)?;
        }
        // Noted first: who looks after the reserve reads it.
        layer.note_limit(limit)?;
        mounted.hold(&layer, limit, self.share(&layer, limit, had)?)
    }

    fn usage(&self, dir: &Path, root: Option<&Path>) -> Result<DiskUsage, StorageError> {
        let layer = Layer::of(dir);
        if layer.is_directory() {
            return Directories.usage(dir, root);
        }
        let (image, superblock) = layer.open()?;
        // After a crash of the host nobody knows before the next start. One that is about to be unmounted is not that.
        let is_known = root.is_some() || !superblock.is_open || find(&layer, &image)?.is_some();
        let (blocks, free, inodes, free_inodes) = match root {
            // The overlay answers for its upper layer.
            Some(root) => {
                let space = reserve::space_at(root)?;
                (space.f_blocks, space.f_bfree, space.f_files, space.f_ffree)
            }
            None => {
                let shape = superblock.shape;
                let (free, free_inodes) = (superblock.free_blocks, superblock.free_inodes);
                (shape.usable(), free, shape.inodes(), free_inodes)
            }
        };
        let most = (blocks - geometry::held_back(blocks).min(blocks)) * BLOCK;
        let limit_bytes = layer.limit().map_or(most, |limit| limit.bytes.min(most));
        Ok(DiskUsage {
            bytes: is_known.then(|| blocks.saturating_sub(free) * BLOCK),
            limit_bytes: Some(limit_bytes / BLOCK * BLOCK),
            inodes: is_known.then(|| inodes.saturating_sub(free_inodes)),
            inodes_limit: Some(inodes),
        })
    }

    /// The last process of a sandbox would unmount its root and its layer, and be there until all that is cached of
    /// them is gone: with many files, for seconds. So it is not the last one that has them.
    fn keep_until_removed(&self, dir: &Path, root: &Path) {
        let kept = File::open(Layer::of(dir).image()).and_then(|image| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let root = rustix::fs::open(root, flags, Mode::empty())?;
            self.ended.put(&image, root)
        });
        // Then its end takes its time.
        if let Err(error) = kept {
            tracing::debug!(%error, root = %root.display(), "not kept mounted");
        }
    }

    fn remove(&self, parent: &Path, name: &str) -> Result<(), StorageError> {
        self.let_go(&Layer::of(&parent.join(name).join(OWN_DIR)));
        let dir = directories::open_for_listing(parent)?;
        remove_tree(&dir, name).map_err(|e| StorageError::io("remove", &parent.join(name), e))
    }

    fn sweep(&self, _: &[PathBuf]) -> Result<(), StorageError> {
        // All that a sandbox has is in its own directory, or goes with its last process.
        self.maker.sweep()?;
        // What the sandboxes of an earlier daemon may take must be known before another one is started.
        if let Err(error) = self.keep_reserve() {
            tracing::warn!(error = %chain(&error), "what sandboxes may take of the host is not known yet");
        }
        Ok(())
    }

    fn host(&self) -> Result<HostDisk, StorageError> {
        let space = reserve::space_at(&self.settings.state_dir)?;
        Ok(HostDisk {
            driver: NAME,
            path: self.settings.state_dir.clone(),
            size_bytes: space.f_blocks * space.f_frsize,
            used_bytes: (space.f_blocks - space.f_bfree) * space.f_frsize,
            host_free_bytes: space.f_bavail * space.f_frsize,
            reserve_bytes: self.settings.reserve_bytes,
            // Their space is back when they are removed: who has them removed counts them.
            being_removed: 0,
        })
    }

    fn grow(&self, _: u64) -> Result<HostDisk, StorageError> {
        Err(StorageError::Unsupported {
            what: "a pool that grows",
            driver: NAME,
            why: NO_POOL.to_owned(),
        })
    }

    fn keep_reserve(&self) -> Result<(), StorageError> {
        let _mounting = self
            .mounting
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        reserve::keep(&self.settings, &self.promised)
    }
}

fn find(layer: &Layer, image: &File) -> Result<Option<LoopDevice>, StorageError> {
    LoopDevice::find(image)
        .map_err(|e| StorageError::io("look for the loop device of", &layer.image(), e))
}

/// Whether nobody has the image mounted: the mount of a sandbox that has just ended goes a moment after its last process, and
/// there is no event for it.
fn is_let_go(layer: &Layer, image: &File) -> Result<bool, StorageError> {
    let end = Instant::now() + LET_GO_WITHIN;
    while find(layer, image)?.is_some() {
        if Instant::now() > end {
            return Ok(false);
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    Ok(true)
}

/// An ext4 has the inodes that it was made with, and gets more only with more blocks.
fn refuse_fewer_inodes(
    layer: &Layer,
    superblock: &Superblock,
    limit: DiskLimit,
) -> Result<(), StorageError> {
    let has = superblock.shape.inodes();
    let is_less = layer
        .limit()
        .is_some_and(|before| limit.inodes < before.inodes);
    if !is_less || inodes_of(limit) >= has {
        return Ok(());
    }
    Err(StorageError::Unsupported {
        what: "a lower limit on the number of files",
        driver: NAME,
        why: format!("its ext4 was made with {has} inodes, and something was written to it"),
    })
}

/// Has a mounted layer grow, or be as it was.
fn grow_mounted(
    layer: &Layer,
    image: &File,
    mounted: &Mounted,
    grown: &Shape,
) -> Result<(), StorageError> {
    let failed = |e| StorageError::io("grow", &layer.image(), e);
    let (length, space) = (
        image.metadata().map_err(failed)?.len(),
        mounted.space(layer)?,
    );
    layer.extend(image, grown)?;
    let Err(error) = mounted.grow(grown) else {
        return Ok(());
    };
    // Not if some of it happened: what the file system has by now must stay. A file that is too long does no harm.
    if mounted.space(layer)?.f_blocks == space.f_blocks {
        let undone = image.set_len(length).and_then(|()| mounted.resized());
        undone.map_err(failed)?;
    }
    if error.raw_os_error() == Some(Errno::EPERM as i32) {
        return Err(StorageError::Unsupported {
            what: "so much higher a limit on a started sandbox",
            driver: NAME,
            why: "this lodged has no CAP_SYS_RESOURCE, and may not resize what is mounted; \
                  stop the sandbox first"
                .to_owned(),
        });
    }
    Err(failed(error))
}
