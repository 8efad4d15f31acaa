//! The overlay driver: the image's layers below, one directory per sandbox above. It only opens directories; the overlay
//! itself is mounted by the sandbox, inside its own namespaces.

use std::fs::DirBuilder;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::driver::{RootLayers, Storage, StorageError};
use super::remove_tree::remove_tree;

/// What the sandbox wrote. It becomes the root directory, so that everybody inside may enter it.
const UPPER: (&str, u32) = ("upper", 0o755);
/// The kernel's scratch directory, on the same file system.
const WORK: (&str, u32) = ("work", 0o700);

/// The overlay driver.
#[derive(Debug, Default)]
pub struct Overlay;

impl Storage for Overlay {
    fn name(&self) -> &'static str {
        "overlay"
    }

    fn no_disk_limit(&self) -> Option<&'static str> {
        Some("the overlay storage driver has no limit on bytes")
    }

    fn prepare(&self, dir: &Path) -> Result<(), StorageError> {
        for (name, mode) in [UPPER, WORK] {
            let path = dir.join(name);
            DirBuilder::new()
                .mode(mode)
                .create(&path)
                .map_err(|e| StorageError::io("create", &path, e))?;
        }
        Ok(())
    }

    fn open(&self, dir: &Path, image: &[PathBuf]) -> Result<RootLayers, StorageError> {
        let lowers = image
            .iter()
            .rev()
            .map(|layer| open_dir(layer))
            .collect::<Result<_, _>>()?;
        // Never made anew: what is not there is lost, or on a file system that is not mounted.
        for (name, _) in [UPPER, WORK] {
            open_dir(&dir.join(name))?;
        }
        Ok(RootLayers {
            lowers,
            writable: open_dir(dir)?,
        })
    }

    fn remove(&self, parent: &Path, name: &str) -> Result<(), StorageError> {
        let dir = open_for_listing(parent)?;
        remove_tree(&dir, name).map_err(|e| StorageError::io("remove", &parent.join(name), e))
    }
}

fn open_dir(path: &Path) -> Result<OwnedFd, StorageError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|e| StorageError::io("open", path, e))
}

fn open_for_listing(path: &Path) -> Result<OwnedFd, StorageError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|e| StorageError::io("open", path, e))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn layers_are_opened_uppermost_first() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let [lower, upper, own] = ["a", "b", "own"].map(|name| temp.path().join(name));
        for dir in [&lower, &upper, &own] {
            std::fs::create_dir(dir).expect("new");
        }
        let overlay = Overlay;
        overlay.prepare(&own).expect("prepared");
        let root = overlay.open(&own, &[lower, upper.clone()]).expect("opened");
        let first = rustix::fs::fstat(&root.lowers[0]).expect("stat");
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
        Overlay.prepare(temp.path()).expect("prepared");
        assert!(Overlay.open(temp.path(), &[link]).is_err());
        assert!(Overlay.open(temp.path(), &[]).is_ok());
    }

    #[test]
    fn what_a_sandbox_wrote_is_never_made_anew() {
        let temp = tempfile::tempdir().expect("temporary directory");
        Overlay.prepare(temp.path()).expect("prepared");
        std::fs::remove_dir(temp.path().join("upper")).expect("removed");
        assert!(Overlay.open(temp.path(), &[]).is_err());
        assert!(!temp.path().join("upper").exists());
    }
}
