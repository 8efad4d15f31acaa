//! A writable layer that is a plain directory: no limit is held.

use std::fs::DirBuilder;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::storage::driver::{
    Abilities, DiskLimit, DiskUsage, HostDisk, Place, Root, Storage, StorageError, Writable,
};
use crate::storage::remove_tree::remove_tree;

/// The directories of a writable layer, with their modes: what the sandbox wrote, which becomes the root directory, so that
/// everybody inside may enter it; and the kernel's scratch directory, on the same file system.
pub(super) const OF_A_LAYER: [(&str, u32); 2] = [("upper", 0o755), ("work", 0o700)];

/// Writable layers that are plain directories.
#[derive(Debug)]
pub struct Directories;

const NO_LIMIT: &str = "its layer is a plain directory";

impl Storage for Directories {
    fn name(&self) -> &'static str {
        "overlay"
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            limit_bytes: Err(NO_LIMIT),
            limit_inodes: Err(NO_LIMIT),
            grow: Err("there is no pool"),
        }
    }

    fn admit(&self) -> Result<(), StorageError> {
        Ok(())
    }

    fn prepare(&self, place: Place<'_>, _: DiskLimit) -> Result<(), StorageError> {
        for (name, mode) in OF_A_LAYER {
            let path = place.dir.join(name);
            DirBuilder::new()
                .mode(mode)
                .create(&path)
                .map_err(|e| StorageError::io("create", &path, e))?;
        }
        Ok(())
    }

    fn check(&self, place: Place<'_>) -> Result<(), StorageError> {
        // Never made anew: what is not there is lost, or on a file system that is not mounted.
        for (name, _) in OF_A_LAYER {
            open_dir(&place.dir.join(name))?;
        }
        place
            .image
            .iter()
            .try_for_each(|layer| open_dir(layer).map(drop))
    }

    fn open(&self, place: Place<'_>, _: DiskLimit) -> Result<Root, StorageError> {
        self.check(place)?;
        Ok(Root::Overlay {
            lowers: open_lowers(place)?,
            writable: Writable::Directory(open_dir(place.dir)?),
        })
    }

    fn set_limit(&self, _: &Path, _: Option<&Path>, _: DiskLimit) -> Result<(), StorageError> {
        Err(StorageError::Unsupported {
            what: "a limit on files",
            driver: self.name(),
            why: NO_LIMIT.to_owned(),
        })
    }

    fn usage(&self, _: &Path, _: Option<&Path>) -> Result<DiskUsage, StorageError> {
        Ok(DiskUsage::default())
    }

    fn remove(&self, parent: &Path, name: &str) -> Result<(), StorageError> {
        let dir = open_for_listing(parent)?;
        remove_tree(&dir, name).map_err(|e| StorageError::io("remove", &parent.join(name), e))
    }

    fn sweep(&self, _: &[PathBuf]) -> Result<(), StorageError> {
        Ok(())
    }

    fn host(&self) -> Result<HostDisk, StorageError> {
        Ok(HostDisk {
            driver: self.name(),
            path: PathBuf::new(),
            size_bytes: 0,
            used_bytes: 0,
            host_free_bytes: 0,
            reserve_bytes: 0,
            being_removed: 0,
        })
    }

    fn grow(&self, _: u64) -> Result<HostDisk, StorageError> {
        Err(StorageError::Unsupported {
            what: "a pool that grows",
            driver: self.name(),
            why: "there is no pool".to_owned(),
        })
    }

    fn keep_reserve(&self) -> Result<(), StorageError> {
        Ok(())
    }
}

/// The layers of an image, uppermost first.
pub(super) fn open_lowers(place: Place<'_>) -> Result<Vec<OwnedFd>, StorageError> {
    let lowers = place.image.iter().rev();
    lowers.map(|layer| open_dir(layer)).collect()
}

fn open_dir(path: &Path) -> Result<OwnedFd, StorageError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|e| StorageError::io("open", path, e))
}

pub(super) fn open_for_listing(path: &Path) -> Result<OwnedFd, StorageError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|e| StorageError::io("open", path, e))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const LIMIT: DiskLimit = DiskLimit {
        bytes: 1,
        inodes: 1,
    };

    fn place<'a>(dir: &'a Path, image: &'a [PathBuf]) -> Place<'a> {
        Place { dir, image }
    }

    #[test]
    fn layers_are_opened_uppermost_first() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let [lower, upper, own] = ["a", "b", "own"].map(|name| temp.path().join(name));
        for dir in [&lower, &upper, &own] {
            std::fs::create_dir(dir).expect("new");
        }
        let image = [lower, upper.clone()];
        Directories
            .prepare(place(&own, &image), LIMIT)
            .expect("prepared");
        let root = Directories
            .open(place(&own, &image), LIMIT)
            .expect("opened");
        let Root::Overlay { lowers, .. } = root else {
            panic!("not an overlay");
        };
        let first = rustix::fs::fstat(&lowers[0]).expect("stat");
        assert_eq!(first.st_ino, rustix::fs::stat(&upper).expect("stat").st_ino);
        let mode = own
            .join("upper")
            .metadata()
            .expect("stat")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o755);
    }

    #[test]
    fn a_layer_that_is_a_link_is_refused() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let link = temp.path().join("link");
        std::os::unix::fs::symlink("/", &link).expect("link");
        let own = place(temp.path(), &[]);
        Directories.prepare(own, LIMIT).expect("prepared");
        assert!(
            Directories
                .open(place(temp.path(), &[link]), LIMIT)
                .is_err()
        );
        assert!(Directories.open(own, LIMIT).is_ok());
    }

    #[test]
    fn what_a_sandbox_wrote_is_never_made_anew() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let own = place(temp.path(), &[]);
        Directories.prepare(own, LIMIT).expect("prepared");
        std::fs::remove_dir(temp.path().join("upper")).expect("removed");
        assert!(Directories.check(own).is_err());
        assert!(Directories.open(own, LIMIT).is_err());
        assert!(!temp.path().join("upper").exists());
    }
}
