//! The files of one writable layer: its image, and the limit that was asked for it last.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::geometry::{BLOCK, Shape};
use super::superblock::Superblock;
use super::{directories, e2fsprogs, sparse};
use crate::fault;
use crate::storage::driver::{DiskLimit, StorageError};

/// The ext4.
pub(super) const IMAGE: &str = "layer.img";
/// The limit. The record of the sandbox has it too, but is not the driver's to read.
const LIMIT: &str = "limit.json";
/// Ends the name of a file that is not whole yet.
const NEW: &str = "new";

/// A writable layer that is there.
#[derive(Debug)]
pub(super) struct Layer {
    dir: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    bytes: u64,
    inodes: u64,
}

impl Layer {
    /// That of a sandbox's directory, whatever there is of it.
    pub(super) fn of(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
        }
    }

    /// Whether it is one of those without a limit.
    pub(super) fn is_directory(&self) -> bool {
        let (upper, _) = directories::OF_A_LAYER[0];
        !self.image().exists() && self.dir.join(upper).is_dir()
    }

    pub(super) fn image(&self) -> PathBuf {
        self.dir.join(IMAGE)
    }

    /// Makes the image, a copy of a template, on disk when it returns; another one that is there is replaced.
    pub(super) fn make(&self, template: &File) -> Result<(), StorageError> {
        let (image, new) = (self.image(), self.image().with_extension(NEW));
        let failed = |e| StorageError::io("write", &new, e);
        let file = fault::around("overlay.copy template", || {
            let file = File::options()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&new)?;
            sparse::copy(template, &file)?;
            Ok::<_, io::Error>(file)
        })
        .map_err(failed)?;
        // The record that says that there is a sandbox must not reach the disk before its layer.
        fault::around("overlay.sync layer", || file.sync_data()).map_err(failed)?;
        fault::around("overlay.place layer", || fs::rename(&new, &image))
            .map_err(|e| StorageError::io("rename to", &image, e))
    }

    /// Becomes that of another directory, which has none. Whole there once its image is.
    pub(super) fn give_to(&self, other: &Self) -> Result<(), StorageError> {
        let (limit, image) = (other.dir.join(LIMIT), other.image());
        fault::around("overlay.place spare", || {
            fs::rename(self.dir.join(LIMIT), &limit)?;
            fs::rename(self.image(), &image)
        })
        .map_err(|e| StorageError::io("rename to", &image, e))
    }

    /// Opens the image, and reads what it says of itself.
    pub(super) fn open(&self) -> Result<(File, Superblock), StorageError> {
        let image = self.image();
        let file = File::options()
            .read(true)
            .write(true)
            .open(&image)
            .map_err(|e| StorageError::io("open", &image, e))?;
        let superblock = Superblock::read(&file).map_err(|e| StorageError::io("use", &image, e))?;
        Ok((file, superblock))
    }

    /// The limit that was asked for last. Absent where nobody can tell.
    pub(super) fn limit(&self) -> Option<DiskLimit> {
        let bytes = fs::read(self.dir.join(LIMIT)).ok()?;
        let Asked { bytes, inodes } = serde_json::from_slice(&bytes).ok()?;
        Some(DiskLimit { bytes, inodes })
    }

    /// Notes it. After a crash of the host it may be the one before: the next start says it again.
    pub(super) fn note_limit(&self, limit: DiskLimit) -> Result<(), StorageError> {
        if self.limit() == Some(limit) {
            return Ok(());
        }
        let (path, new) = (
            self.dir.join(LIMIT),
            self.dir.join(LIMIT).with_extension(NEW),
        );
        let DiskLimit { bytes, inodes } = limit;
        let text = serde_json::to_vec(&Asked { bytes, inodes }).expect("plain values are JSON");
        fault::around("overlay.note limit", || {
            fs::write(&new, text)?;
            fs::rename(&new, &path)
        })
        .map_err(|e| StorageError::io("write", &path, e))
    }

    /// Gives the file as many bytes as the shape has blocks, none fewer than it has.
    pub(super) fn extend(&self, file: &File, shape: &Shape) -> Result<(), StorageError> {
        fault::around("overlay.extend image", || {
            let length = (shape.blocks * BLOCK).max(file.metadata()?.len());
            file.set_len(length)
        })
        .map_err(|e| StorageError::io("extend", &self.image(), e))
    }

    /// Has the image grow while it is not mounted.
    pub(super) fn grow(&self, file: &File, shape: &Shape) -> Result<(), StorageError> {
        self.extend(file, shape)?;
        // Without it resize2fs refuses: the journal may have something to be played back.
        e2fsprogs::mend(&self.image())?;
        fault::around("overlay.resize image", || {
            e2fsprogs::resize(&self.image(), shape.blocks)
        })
    }
}
