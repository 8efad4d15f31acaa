//! Subvolumes and their qgroups in the pool. Nothing here knows of sandboxes.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use lodge_kernel::btrfs::{self, Access, GroupUsage, LEVEL_SHIFT, Quotas};
use nix::errno::Errno;
use nix::sys::stat::futimens;
use nix::sys::time::TimeSpec;
use rustix::fs::{Mode, OFlags};

use super::volume::Volume;
use crate::error::chain;
use crate::fault;
use crate::storage::StorageError;
use crate::storage::pool::Pool;

/// How often a random number may be taken already: once is a wonder.
const ATTEMPTS: usize = 4;

/// The directory of roots.
#[derive(Debug)]
pub(super) struct Roots {
    path: PathBuf,
    dir: File,
    /// The qgroup that all sandboxes' qgroups are in.
    all: u64,
    owner: Owner,
}

/// Whose the file system is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// A pool's own, in its file: every qgroup is one of it.
    Pool,
    /// The host's: there are qgroups that are nobody's business.
    Host,
}

/// Subvolumes that are destroyed, and whose qgroup is to go with them.
#[derive(Debug)]
pub(super) struct Destroyed {
    pub(super) volume: Volume,
    /// Ids of the subvolumes, as far as they are known.
    pub(super) ids: Vec<u64>,
}

/// A root that is being made. Whatever is there of it goes, if it does not become whole.
struct Half<'a> {
    roots: &'a Roots,
    volume: Volume,
}

impl Half<'_> {
    fn whole(self) -> Volume {
        let volume = self.volume;
        std::mem::forget(self);
        volume
    }
}

impl Drop for Half<'_> {
    fn drop(&mut self) {
        let undone = self.roots.destroy(self.volume);
        let undone = undone.and_then(|destroyed| self.roots.is_gone(&destroyed));
        if let Err(error) = undone {
            tracing::warn!(error = %chain(&error), "half a root stays until the next start");
        }
    }
}

impl Roots {
    /// Opens the directory of a pool, and has its file system count.
    pub(super) fn open(pool: &Pool) -> Result<Self, StorageError> {
        let path = pool.roots_dir();
        let dir = File::open(&path).map_err(|e| StorageError::io("open", &path, e))?;
        let quotas = fault::around("btrfs.enable quotas", || btrfs::enable_quotas(&dir))
            .map_err(|e| StorageError::io("have quotas counted on", &path, e))?;
        refuse_full_quotas(quotas)?;
        let all = number_of(pool.dir())?.qgroup_of_all();
        make_qgroup_of_all(&dir, all)
            .map_err(|e| StorageError::io("make the qgroup of", &path, e))?;
        let owner = match pool.file() {
            Some(_) => Owner::Pool,
            None => Owner::Host,
        };
        Ok(Self {
            path,
            dir,
            all,
            owner,
        })
    }

    /// What all sandboxes have, in bytes.
    pub(super) fn all_used(&self) -> io::Result<u64> {
        let usage = btrfs::usage(self.fs(), self.all)?;
        Ok(usage.map_or(0, |usage| usage.exclusive.saturating_add(usage.reserved)))
    }

    /// The same without what is promised to files whose data is not on disk yet.
    pub(super) fn all_on_disk(&self) -> io::Result<u64> {
        let usage = btrfs::usage(self.fs(), self.all)?;
        Ok(usage.map_or(0, |usage| usage.exclusive))
    }

    /// Limits what all sandboxes have.
    pub(super) fn limit_all(&self, bytes: u64) -> nix::Result<()> {
        btrfs::set_limit(self.fs(), self.all, Some(bytes))
    }

    /// For ioctls on the file system.
    pub(super) fn fs(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    pub(super) fn dir(&self) -> &Path {
        &self.path
    }

    pub(super) fn path(&self, volume: Volume) -> PathBuf {
        self.path.join(volume.to_string())
    }

    fn failed(&self, action: &'static str, volume: Volume) -> impl FnOnce(Errno) -> StorageError {
        let path = self.path(volume);
        move |errno| StorageError::io(action, &path, errno)
    }

    /// Makes a root from an image, with a qgroup of its own and no limit. On disk when this returns.
    pub(super) fn make(&self, image: &Path) -> Result<Volume, StorageError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let source = rustix::fs::open(image, flags, Mode::empty())
            .map_err(|e| StorageError::io("open", image, e))?;
        let half = self.make_qgroup()?;
        let (name, groups) = (half.volume.to_string(), [half.volume.qgroup()]);
        fault::around("btrfs.snapshot", || {
            btrfs::snapshot(&source, &self.dir, &name, Access::ReadWrite, &groups)
        })
        .map_err(|errno| StorageError::io("make a snapshot of", image, errno))?;
        Ok(half.whole())
    }

    fn make_qgroup(&self) -> Result<Half<'_>, StorageError> {
        let mut taken = Errno::EEXIST;
        for _ in 0..ATTEMPTS {
            let volume = Volume::random().map_err(|e| StorageError::io("number", &self.path, e))?;
            let half = Half {
                roots: self,
                volume,
            };
            match fault::around("btrfs.make group", || self.make_qgroup_of(volume)) {
                Ok(()) => return Ok(half),
                Err(Errno::EEXIST) => {
                    // It is another one's.
                    taken = Errno::EEXIST;
                    half.whole();
                }
                Err(errno) => return Err(self.failed("make the qgroup of", volume)(errno)),
            }
        }
        Err(StorageError::io("make a qgroup in", &self.path, taken))
    }

    fn make_qgroup_of(&self, volume: Volume) -> nix::Result<()> {
        btrfs::create_group(self.fs(), volume.qgroup())?;
        btrfs::assign(self.fs(), volume.qgroup(), self.all)
    }

    /// The root directory (O_PATH).
    pub(super) fn open_root(&self, volume: Volume) -> Result<OwnedFd, StorageError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.dir, volume.to_string(), flags, Mode::empty())
            .map_err(|e| StorageError::io("open", &self.path(volume), e))
    }

    /// Has a limit held. Full or not, nothing that is there is touched.
    pub(super) fn set_limit(&self, volume: Volume, bytes: Option<u64>) -> Result<(), StorageError> {
        fault::around("btrfs.set limit", || {
            btrfs::set_limit(self.fs(), volume.qgroup(), bytes)
        })
        .map_err(self.failed("set the limit of", volume))
    }

    pub(super) fn usage(&self, volume: Volume) -> Result<GroupUsage, StorageError> {
        let usage = btrfs::usage(self.fs(), volume.qgroup()).and_then(|usage| {
            usage.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "its qgroup is gone"))
        });
        usage.map_err(|e| StorageError::io("read what is used by", &self.path(volume), e))
    }

    /// Takes a root out of sight, with all that lies in it. One that is not there is no error: the qgroup may still be.
    pub(super) fn destroy(&self, volume: Volume) -> Result<Destroyed, StorageError> {
        // At its limit, a change of the file system's own trees could be refused as well. On a full file system the limit itself
        // cannot be changed, and to destroy is what helps: the kernel keeps room for that.
        match btrfs::set_limit(self.fs(), volume.qgroup(), None) {
            Ok(()) | Err(Errno::ENOENT | Errno::ENOSPC) => {}
            Err(errno) => return Err(self.failed("lift the limit of", volume)(errno)),
        }
        let name = volume.to_string();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = match rustix::fs::openat(&self.dir, name.as_str(), flags, Mode::empty()) {
            Ok(root) => root,
            Err(rustix::io::Errno::NOENT) => {
                return Ok(Destroyed {
                    volume,
                    ids: Vec::new(),
                });
            }
            Err(errno) => return Err(StorageError::io("open", &self.path(volume), errno)),
        };
        let id = btrfs::id(&root).map_err(self.failed("tell the id of", volume))?;
        drop(root);
        let nested =
            btrfs::below(self.fs(), id).map_err(self.failed("list what lies in", volume))?;
        fault::around("btrfs.destroy nested", || {
            btrfs::destroy_all(self.fs(), &nested)
        })
        .map_err(self.failed("destroy what lies in", volume))?;
        fault::around("btrfs.destroy root", || btrfs::destroy(&self.dir, &name))
            .map_err(self.failed("destroy", volume))?;
        let ids = nested.into_iter().chain([id]).collect();
        Ok(Destroyed { volume, ids })
    }

    /// Has the kernel begin to remove what is destroyed: it does so after a commit by its own thread, which may be half a minute
    /// away.
    pub(super) fn have_destroyed_removed(&self) -> nix::Result<()> {
        // Where nothing was changed since the last one, there is no commit, and nothing begins. A file system with no room for
        // that has more than enough to write.
        let _ = futimens(&self.dir, &TimeSpec::UTIME_NOW, &TimeSpec::UTIME_NOW);
        btrfs::start_commit(self.fs())
    }

    /// Whether nothing is left: then the qgroup is gone, too.
    pub(super) fn is_gone(&self, destroyed: &Destroyed) -> Result<bool, StorageError> {
        let volume = destroyed.volume;
        for id in &destroyed.ids {
            if !btrfs::is_dropped(self.fs(), *id).map_err(self.failed("look for", volume))? {
                return Ok(false);
            }
            // The kernel does it by itself from 6.11 on. If it cannot be, the qgroup above tells.
            let _ = btrfs::remove_group(self.fs(), *id);
        }
        let removed = fault::around("btrfs.remove group", || {
            btrfs::remove_group(self.fs(), volume.qgroup())
        });
        match removed {
            Ok(()) | Err(Errno::ENOENT) => Ok(true),
            Err(Errno::EBUSY) => Ok(false),
            Err(errno) => Err(self.failed("remove the qgroup of", volume)(errno)),
        }
    }

    /// All that have a root, and all that have a qgroup.
    pub(super) fn all(&self) -> Result<Vec<Volume>, StorageError> {
        let listed = |e| StorageError::io("list", &self.path, e);
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(listed)? {
            let name: OsString = entry.map_err(listed)?.file_name();
            // What is not named by us is not ours.
            all.extend(name.to_str().and_then(Volume::parse));
        }
        let groups = match self.owner {
            // Also those that were not put into the qgroup of all any more.
            Owner::Pool => btrfs::groups(self.fs()),
            Owner::Host => btrfs::members(self.fs(), self.all),
        };
        let groups = groups.map_err(|e| listed(e.into()))?;
        all.extend(groups.into_iter().filter_map(Volume::of_qgroup));
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    /// Removes the qgroups that destroyed subvolumes left on kernels before 6.11.
    pub(super) fn remove_qgroups_of_nothing(&self) -> nix::Result<()> {
        if self.owner == Owner::Host {
            return Ok(());
        }
        let there = btrfs::all_subvolumes(self.fs())?;
        for group in btrfs::groups(self.fs())? {
            // The top of the file system is no entry of the list.
            let is_of_subvolume = group >> LEVEL_SHIFT == 0 && group > TOP;
            if is_of_subvolume && !there.contains(&group) {
                let _ = btrfs::remove_group(self.fs(), group);
            }
        }
        Ok(())
    }
}

/// The last id of the file system's own trees.
const TOP: u64 = 255;

/// The number of a pool. One that has none gets one.
fn number_of(dir: &Path) -> Result<Volume, StorageError> {
    let failed = |e| StorageError::io("read the number of", dir, e);
    if let Some(number) = Volume::read(dir).map_err(failed)? {
        return Ok(number);
    }
    let number = Volume::random().map_err(failed)?;
    number.write(dir)?;
    Ok(number)
}

/// Makes the qgroup above all, if it is not there. To ask the kernel for one that is takes room, which a full file system has not.
fn make_qgroup_of_all(fs: &File, all: u64) -> io::Result<()> {
    if btrfs::usage(fs, all)?.is_none() {
        btrfs::create_group(fs, all)?;
    }
    Ok(())
}

/// With full quotas a snapshot that gets into a qgroup makes all figures wrong, and stops them, until everything is counted anew.
fn refuse_full_quotas(quotas: Quotas) -> Result<(), StorageError> {
    match quotas {
        Quotas::Simple => Ok(()),
        Quotas::Full => Err(StorageError::Unfit {
            what: "the file system counts with full quotas, and limits need simple ones".to_owned(),
            hint: "use Linux 6.7 or newer with simple quotas (`btrfs quota enable --simple`); for a new state_dir there is storage.driver = \"overlay\"",
        }),
    }
}
