//! What implements the trait.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lodge_kernel::btrfs;
use lodge_kernel::seccomp;

use super::brake::{Brake, GRAIN};
use super::orphans::Orphans;
use super::removals::Removals;
use super::roots::Roots;
use super::spares::RootsAhead;
use super::volume::Volume;
use crate::error::chain;
use crate::fault;
use crate::storage::caught::caught;
use crate::storage::pool::Pool;
use crate::storage::remove_tree::remove_tree;
use crate::storage::spares::Spares;
use crate::storage::{
    Abilities, Beneath, DiskLimit, DiskUsage, HostDisk, OWN_DIR, Place, Root, Storage, StorageError,
};

const NAME: &str = "btrfs";

/// Sandboxes as snapshots of their images.
#[derive(Debug)]
pub struct Btrfs {
    // Ended before the pool goes, in this order.
    spares: Spares<RootsAhead>,
    removals: Arc<Removals>,
    roots: Arc<Roots>,
    brake: Brake,
    pool: Pool,
}

impl Btrfs {
    /// Takes over a pool, of which `reserve_bytes` of the host's free space are never given to sandboxes.
    ///
    /// # Errors
    /// [`StorageError::Unfit`] where sandboxes could get around their limits.
    pub fn open(pool: Pool, reserve_bytes: u64) -> Result<Self, StorageError> {
        refuse_without_filter(&seccomp::base_program())?;
        let roots = Arc::new(Roots::open(&pool)?);
        let brake = Brake::new(reserve_bytes);
        // Before the first sandbox writes.
        let braked = caught("limit what all sandboxes take in", pool.dir(), || {
            brake.adjust(&pool, &roots)
        });
        match braked {
            // What the last daemon set is held until there is room for a change.
            Err(error) if error.is_for_want_of_room() => {
                tracing::warn!(error = %chain(&error), "the limit of all sandboxes stays as it was");
            }
            other => other?,
        }
        let no_thread = |e| StorageError::io("start the threads of", pool.dir(), e);
        let removals = Arc::new(Removals::start(Arc::clone(&roots)).map_err(no_thread)?);
        let ahead = RootsAhead {
            roots: Arc::clone(&roots),
            removals: Arc::clone(&removals),
        };
        let spares = Spares::start(ahead).map_err(no_thread)?;
        Ok(Self {
            spares,
            removals,
            roots,
            brake,
            pool,
        })
    }

    /// Makes a root that nobody names yet a sandbox's.
    fn give(&self, volume: Volume, place: Place<'_>) -> Result<(), StorageError> {
        let unowned = Unowned {
            driver: self,
            volume,
            dir: place.dir,
        };
        volume.write(place.dir)?;
        std::mem::forget(unowned);
        Ok(())
    }

    /// How many roots are made ahead of an image.
    #[cfg(test)]
    pub(super) fn ready_of(&self, image: &Path) -> usize {
        self.spares.ready(&image.to_owned())
    }

    /// Removes the roots that no sandbox names, unless there are too many of them to believe that.
    fn destroy_orphans(&self, owned: &BTreeSet<Volume>) -> Result<(), StorageError> {
        // Beside the pool, where whoever has to mend this can see it.
        let orphans = Orphans::of(
            self.pool
                .dir()
                .parent()
                .expect("it is in the state directory"),
        )?;
        let all = self.roots.all()?;
        let go = orphans.that_may_go(&all, owned, |volume| self.roots.path(volume).exists())?;
        for &volume in &go {
            tracing::debug!(%volume, "a root of no sandbox is removed");
            caught("remove", &self.roots.path(volume), || self.destroy(volume))?;
        }
        orphans.forget_if_none(&all, owned, &go)
    }

    fn destroy(&self, volume: Volume) -> Result<(), StorageError> {
        self.removals.add(self.roots.destroy(volume)?);
        Ok(())
    }
}

/// A root of which a sandbox's directory may say that it has it. It goes, if it does not become the sandbox's.
struct Unowned<'a> {
    driver: &'a Btrfs,
    volume: Volume,
    dir: &'a Path,
}

impl Drop for Unowned<'_> {
    fn drop(&mut self) {
        // Where the file stays, whoever removes the sandbox finds no root, which is no error.
        if let Err(error) = Volume::unwrite(self.dir) {
            tracing::debug!(%error, "the file of a create that failed stays with it");
        }
        if let Err(error) = self.driver.destroy(self.volume) {
            tracing::warn!(error = %chain(&error), "the root of a create that failed stays until the next start");
        }
    }
}

/// As root of its user namespace, a sandbox that may make subvolumes makes them outside of its qgroup.
pub(super) fn refuse_without_filter(program: &seccomp::Program) -> Result<(), StorageError> {
    if seccomp::denies_btrfs(program) {
        return Ok(());
    }
    Err(StorageError::Unfit {
        what: "the table of system calls lets sandboxes make subvolumes of btrfs, outside their limits".to_owned(),
        hint: "this lodged is built with another table than it was made for: for a new state_dir there is storage.driver = \"overlay\"",
    })
}

/// The root that a sandbox's own directory names.
fn volume_of(dir: &Path) -> Result<Volume, StorageError> {
    let named = Volume::read(dir).and_then(|found| {
        found.ok_or_else(|| std::io::Error::new(std::io::ErrorKind::NotFound, "it names no root"))
    });
    named.map_err(|e| StorageError::io("read the volume of", dir, e))
}

/// The subvolume that an image is.
fn subvolume_of(image: &[PathBuf]) -> Result<&Path, StorageError> {
    match image {
        [one] => Ok(one),
        _ => Err(StorageError::Unfit {
            what: format!(
                "the image is {} directories, and not one subvolume",
                image.len()
            ),
            hint: "import the image again",
        }),
    }
}

impl Storage for Btrfs {
    fn name(&self) -> &'static str {
        NAME
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            limit_bytes: Ok(()),
            limit_inodes: Err("btrfs counts bytes and not files"),
            grow: match self.pool.file() {
                Some(_) => Ok(()),
                None => Err("it is a directory of the host's own file system"),
            },
        }
    }

    fn admit(&self) -> Result<(), StorageError> {
        let room = self.brake.room(&self.pool)?;
        if room.bytes > 0 {
            return Ok(());
        }
        Err(StorageError::Reserve {
            free_bytes: room.free,
            reserve_bytes: self.brake.reserve(),
        })
    }

    fn prepare(&self, place: Place<'_>, limit: DiskLimit) -> Result<(), StorageError> {
        let image = subvolume_of(place.image)?;
        let volume = match self.spares.take(image.to_owned()) {
            Some(volume) => volume,
            None => self.roots.make(image)?,
        };
        self.give(volume, place)?;
        self.roots.set_limit(volume, Some(limit.bytes))
    }

    fn check(&self, place: Place<'_>) -> Result<(), StorageError> {
        let volume = volume_of(place.dir)?;
        self.roots.open_root(volume)?;
        self.roots.usage(volume).map(drop)
    }

    fn open(&self, place: Place<'_>, limit: DiskLimit) -> Result<Root, StorageError> {
        let volume = volume_of(place.dir)?;
        let root = self.roots.open_root(volume)?;
        // A limit is on disk with the next commit only, and the host may have lost power before. One that is held is not set
        // again: a change of it may have to wait for a commit.
        if self.roots.usage(volume)?.limit != Some(limit.bytes) {
            self.roots.set_limit(volume, Some(limit.bytes))?;
        }
        Ok(Root::Whole(root))
    }

    fn set_limit(
        &self,
        dir: &Path,
        _: Option<&Path>,
        limit: DiskLimit,
    ) -> Result<(), StorageError> {
        let volume = volume_of(dir)?;
        let mut used = self.roots.usage(volume)?.exclusive;
        if used > limit.bytes {
            // What was deleted lately may still be counted.
            btrfs::commit(self.roots.fs()).map_err(|e| StorageError::io("commit", dir, e))?;
            used = self.roots.usage(volume)?.exclusive;
        }
        if used > limit.bytes {
            return Err(StorageError::InUse {
                limit_bytes: limit.bytes,
                used_bytes: used,
            });
        }
        self.roots.set_limit(volume, Some(limit.bytes))
    }

    fn usage(&self, dir: &Path, _: Option<&Path>) -> Result<DiskUsage, StorageError> {
        let volume = volume_of(dir)?;
        let mut usage = self.roots.usage(volume)?;
        if usage
            .limit
            .is_some_and(|limit| usage.exclusive.saturating_add(GRAIN) > limit)
        {
            // What was removed is counted until the next commit, and would pass for a full disk.
            btrfs::commit(self.roots.fs()).map_err(|e| StorageError::io("commit", dir, e))?;
            usage = self.roots.usage(volume)?;
        }
        let bytes = usage.exclusive.saturating_add(usage.reserved);
        let left = self.brake.left(&self.roots);
        let left =
            left.map_err(|e| StorageError::io("read what is used in", self.pool.dir(), e))?;
        // At the reserve it is that which is in the way of this sandbox, and no longer its own limit.
        let limit_bytes = match usage.limit {
            Some(limit) if left < GRAIN => Some(limit.min(bytes.saturating_add(left))),
            limit => limit,
        };
        Ok(DiskUsage {
            bytes: Some(bytes),
            limit_bytes,
            inodes: None,
            inodes_limit: None,
        })
    }

    fn remove(&self, parent: &Path, name: &str) -> Result<(), StorageError> {
        let path = parent.join(name);
        let own = path.join(OWN_DIR);
        match Volume::read(&own) {
            Ok(Some(volume)) => self.destroy(volume)?,
            Ok(None) => {}
            // Torn by a crash before the record was written, or not ours: what it named, if anything, is nobody's from now on.
            Err(error) => tracing::warn!(
                %error, dir = %own.display(), "its root, if it has one, stays until the next start"
            ),
        }
        fault::around("btrfs.remove directory", || -> std::io::Result<()> {
            Ok(remove_tree(File::open(parent)?, name)?)
        })
        .map_err(|e| StorageError::io("remove", &path, e))
    }

    fn sweep(&self, dirs: &[PathBuf]) -> Result<(), StorageError> {
        let mut owned = BTreeSet::new();
        for dir in dirs {
            match Volume::read(dir) {
                Ok(volume) => owned.extend(volume),
                Err(error) => {
                    // It may name any of them.
                    tracing::warn!(%error, dir = %dir.display(), "roots of no sandbox stay: it cannot be told which are");
                    return Ok(());
                }
            }
        }
        self.destroy_orphans(&owned)?;
        if let Err(errno) = self.roots.remove_qgroups_of_nothing() {
            tracing::warn!(%errno, "qgroups of subvolumes that are gone stay");
        }
        Ok(())
    }

    fn host(&self) -> Result<HostDisk, StorageError> {
        let size = self.pool.size()?;
        Ok(HostDisk {
            driver: NAME,
            path: self.pool.file().unwrap_or(self.pool.dir()).to_owned(),
            size_bytes: size.bytes,
            used_bytes: size.used,
            host_free_bytes: self.brake.room(&self.pool)?.host_free,
            reserve_bytes: self.brake.reserve(),
            being_removed: self.removals.left() as u64,
        })
    }

    fn beneath(&self) -> Result<Option<Beneath>, StorageError> {
        if self.pool.file().is_none() {
            return Ok(None);
        }
        let room = self.brake.room(&self.pool)?;
        Ok(Some(Beneath {
            free_bytes: room.host_free.saturating_sub(room.not_written),
            reserve_bytes: self.brake.reserve(),
        }))
    }

    fn grow(&self, bytes: u64) -> Result<HostDisk, StorageError> {
        self.pool.grow(bytes)?;
        self.keep_reserve()?;
        self.host()
    }

    fn keep_reserve(&self) -> Result<(), StorageError> {
        // An image that was removed is not to be kept on disk by what was made of it ahead.
        self.spares.keep_only(|image| image.exists());
        self.brake.adjust(&self.pool, &self.roots)
    }
}
