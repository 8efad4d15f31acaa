//! How layers lie on disk: what differs between a store for overlays and one for btrfs.
//!
//! `Directories`: each layer by itself, under the digest of its tar stream; an overlay stacks them. `Subvolumes`: each layer
//! is a snapshot of the one below with its own entries on top, under the digest of the chain up to it; the uppermost one
//! alone is the image's root. A store keeps the form that it was made with.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;

use super::unpack::Tree;
use super::{Digest, ImageError};
use crate::storage::remove_tree::remove_tree;

/// What a root gets if the archive does not say.
const ROOT_MODE: u32 = 0o755;

/// How layers lie on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Each layer is a directory with its own files and whiteouts.
    Directories,
}

impl Form {
    /// Under which digests the layers of an image lie, from the lowest.
    pub(super) fn keys(self, diff_ids: &[Digest]) -> Vec<Digest> {
        match self {
            Self::Directories => diff_ids.to_vec(),
        }
    }

    /// Of an image's layers, those that make up its root file system.
    pub(super) fn roots<T>(self, layers: &[T]) -> &[T] {
        match self {
            Self::Directories => layers,
        }
    }

    /// Makes the root of a new layer at `root`, above the one at `below`.
    pub(super) fn make(self, root: &Path, _below: Option<&Path>) -> Result<Tree, ImageError> {
        match self {
            Self::Directories => {
                make_private(root)?;
                fs::set_permissions(root, fs::Permissions::from_mode(ROOT_MODE))
                    .map_err(|e| ImageError::io("make", "a layer's root", e))?;
                Tree::open(root)
            }
        }
    }

    /// Ends the writing of a layer's root.
    pub(super) fn finish(self, _root: &Path) -> Result<(), ImageError> {
        match self {
            Self::Directories => Ok(()),
        }
    }

    /// Whether the root of a layer is there, in this form.
    pub(super) fn is_layer(self, root: &Path) -> bool {
        match self {
            Self::Directories => root.is_dir(),
        }
    }

    /// Removes a layer, or whatever else of the store is at `path`. What is not there is removed already.
    pub(super) fn remove(self, path: &Path) -> io::Result<()> {
        match self {
            Self::Directories => remove_entry(path),
        }
    }
}

pub(super) fn make_private(path: &Path) -> Result<(), ImageError> {
    const PRIVATE: u32 = 0o700;
    DirBuilder::new()
        .mode(PRIVATE)
        .create(path)
        .map_err(|e| ImageError::io("make a directory in", "staging", e))
}

/// Removes what is there, however deep: what an archive made is no matter for a recursion of the standard library.
fn remove_entry(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    Ok(remove_tree(File::open(parent)?, name)?)
}
