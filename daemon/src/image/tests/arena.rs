//! A store in a directory of its own, and what an attack must not touch.

use std::fs::{self, File};
use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::pool::Pool;
use crate::image::budget::{Budget, Observer};
use crate::image::unpack::{Tree, unpack_layer};
use crate::image::{Form, Image, ImageError, ImageName, ImageStore, Limits};

/// A store, and beside it a directory that no import may touch.
pub(super) struct Arena {
    directory: TempDir,
    images: PathBuf,
    pub(super) store: ImageStore,
}

impl Arena {
    pub(super) fn new() -> Self {
        Self::with(|_| {})
    }

    /// With layers as subvolumes.
    pub(super) fn on(pool: &Pool) -> Self {
        Self::made(Some(pool), |_| {})
    }

    pub(super) fn with(change: impl FnOnce(&mut Limits)) -> Self {
        Self::made(None, change)
    }

    fn made(pool: Option<&Pool>, change: impl FnOnce(&mut Limits)) -> Self {
        assert!(is_root(), "this test needs root: owners are kept");
        let directory = tempfile::tempdir().expect("a temporary directory");
        let outside = directory.path().join("outside");
        fs::create_dir(&outside).expect("made");
        fs::write(outside.join("canary"), "untouched").expect("written");
        let mut limits = no_reserve();
        change(&mut limits);
        let (form, parent) = match pool {
            None => (Form::Directories, directory.path()),
            Some(pool) => (Form::Subvolumes, pool.path()),
        };
        let images = parent.join("images");
        let store = ImageStore::open_with(&images, form, limits).expect("opened");
        Self {
            directory,
            images,
            store,
        }
    }

    pub(super) fn images(&self) -> PathBuf {
        self.images.clone()
    }

    /// The directory that nothing may touch; attacks aim at it.
    pub(super) fn outside(&self) -> PathBuf {
        self.directory.path().join("outside")
    }

    pub(super) fn import(&self, archive: &[u8]) -> Result<Image, ImageError> {
        self.import_as("test", archive)
    }

    pub(super) fn import_as(&self, name: &str, archive: &[u8]) -> Result<Image, ImageError> {
        let name = ImageName::parse(name).expect("a valid name");
        self.store.import(&name, &self.received(archive), &mut |_| {
            ControlFlow::Continue(())
        })
    }

    pub(super) fn received(&self, archive: &[u8]) -> File {
        received(&self.store, archive)
    }

    /// Imports an honest archive of one layer and gives its root.
    pub(super) fn root_of(&self, archive: &[u8]) -> PathBuf {
        self.import(archive).expect("imported").layers[0]
            .path
            .clone()
    }

    /// Imports an archive that must be refused as a whole; gives the message.
    pub(super) fn refused(&self, archive: &[u8]) -> String {
        let before = self.listing();
        let error = self.import(archive).expect_err("the archive was accepted");
        self.check_outside();
        assert_eq!(self.listing(), before, "a refused import left something");
        error.to_string()
    }

    /// Unpacks without a store, for trials by the thousand: no sync of the disk.
    pub(super) fn unpack_only(&self, archive: &[u8]) -> Result<(), ImageError> {
        let root = tempfile::tempdir_in(self.directory.path()).expect("a directory");
        let disk = File::open(root.path()).expect("opened");
        let observer: &mut Observer<'_> = &mut |_| ControlFlow::Continue(());
        let mut budget = Budget::new(*self.store.limits(), &disk, None, observer);
        unpack_layer(archive, Tree::open(root.path())?, &mut budget).map(drop)
    }

    /// The canary is as it was, and alone.
    pub(super) fn check_outside(&self) {
        let outside = self.outside();
        assert_eq!(
            fs::read_to_string(outside.join("canary")).expect("there"),
            "untouched"
        );
        assert_eq!(
            fs::read_dir(&outside).expect("there").count(),
            1,
            "something new is outside"
        );
        assert_eq!(mode(&outside), 0o755);
        assert_eq!(mode(&outside.join("canary")), 0o644);
    }

    /// What is in the store, but for its files' content.
    pub(super) fn listing(&self) -> Vec<PathBuf> {
        let mut all = Vec::new();
        for part in ["layers", "staging"] {
            let entries = fs::read_dir(self.images().join(part)).expect("there");
            all.extend(entries.map(|entry| entry.expect("readable").path()));
        }
        all.sort();
        all
    }
}

/// A store with other layers than the arena's, or the arena's once more.
pub(super) fn opened(images: &Path, form: Form) -> Result<ImageStore, ImageError> {
    ImageStore::open_with(images, form, no_reserve())
}

/// The disk of a test is small.
fn no_reserve() -> Limits {
    Limits {
        disk_reserve_bytes: 0,
        ..Limits::default()
    }
}

pub(super) fn received(store: &ImageStore, archive: &[u8]) -> File {
    let mut file = store.receive().expect("a file");
    file.write_all(archive).expect("written");
    file
}

pub(super) fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("there").mode() & 0o7777
}

fn is_root() -> bool {
    fs::metadata("/proc/self").expect("/proc is mounted").uid() == 0
}
