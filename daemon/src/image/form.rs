//! How layers lie on disk: what differs between a store for overlays and one for btrfs.
//!
//! `Directories`: each layer by itself, under the digest of its tar stream; an overlay stacks them. `Subvolumes`: each layer
//! is a snapshot of the one below with its own entries on top, under the digest of the chain up to it; the uppermost one
//! alone is the image's root. A store keeps the form that it was made with.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use lodge_kernel::btrfs::{self, Access};
use sha2::{Digest as _, Sha256};

use super::unpack::Tree;
use super::{Digest, ImageError};
use crate::storage::remove_tree::remove_tree;

/// What a root gets if the archive does not say.
const ROOT_MODE: u32 = 0o755;
/// The inode number that the root of every subvolume has, and no other file.
const SUBVOLUME_ROOT: u64 = 256;
/// A layer's root in its directory.
pub(super) const ROOT: &str = "root";

/// How layers lie on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Each layer is a directory with its own files and whiteouts.
    Directories,
    /// Each layer is a read-only subvolume with the files of all layers up to it. Only on btrfs.
    Subvolumes,
}

impl Form {
    /// Its name for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Directories => "directories",
            Self::Subvolumes => "subvolumes",
        }
    }

    /// Under which digests the layers of an image lie, from the lowest.
    pub(super) fn keys(self, diff_ids: &[Digest]) -> Vec<Digest> {
        match self {
            Self::Directories => diff_ids.to_vec(),
            Self::Subvolumes => chain_ids(diff_ids),
        }
    }

    /// Of an image's layers, those that make up its root file system.
    pub(super) fn roots<T>(self, layers: &[T]) -> &[T] {
        match self {
            Self::Directories => layers,
            Self::Subvolumes => &layers[layers.len().saturating_sub(1)..],
        }
    }

    /// Refuses a directory in which layers cannot lie in this form.
    pub(super) fn check(self, directory: &Path) -> Result<(), ImageError> {
        let failed = |e| ImageError::io("look at", "the images directory", e);
        if self == Self::Subvolumes && !is_btrfs(directory).map_err(failed)? {
            return Err(ImageError::NotBtrfs);
        }
        Ok(())
    }

    /// Makes the root of a new layer in its directory, above the one at `below`.
    pub(super) fn make(self, layer: &Path, below: Option<&Path>) -> Result<Tree, ImageError> {
        let failed = |e| ImageError::io("make", "a layer's root", e);
        let root = layer.join(ROOT);
        match self {
            Self::Directories => {
                make_private(&root)?;
                fs::set_permissions(&root, fs::Permissions::from_mode(ROOT_MODE))
                    .map_err(failed)?;
                Tree::open(&root)
            }
            Self::Subvolumes => {
                make_subvolume(layer, below).map_err(failed)?;
                Tree::open_above(&root)
            }
        }
    }

    /// Ends the writing of a layer's root.
    pub(super) fn finish(self, layer: &Path) -> Result<(), ImageError> {
        match self {
            Self::Directories => Ok(()),
            Self::Subvolumes => File::open(layer.join(ROOT))
                .and_then(|root| Ok(btrfs::set_read_only(root)?))
                .map_err(|e| ImageError::io("finish", "a layer's root", e)),
        }
    }

    /// Whether the root of a layer is there, in this form.
    pub(super) fn is_layer(self, root: &Path) -> bool {
        match self {
            Self::Directories => root.is_dir(),
            Self::Subvolumes => is_subvolume(root).unwrap_or(false),
        }
    }

    /// Removes a layer, or whatever else of the store is at `path`. What is not there is removed already.
    pub(super) fn remove(self, path: &Path) -> io::Result<()> {
        if self == Self::Subvolumes {
            destroy_below(path)?;
        }
        remove_entry(path)
    }
}

/// What OCI calls ChainIDs: of each layer, the digest that stands for it above all that are below.
fn chain_ids(diff_ids: &[Digest]) -> Vec<Digest> {
    let mut chain: Vec<Digest> = Vec::with_capacity(diff_ids.len());
    for diff_id in diff_ids {
        chain.push(match chain.last() {
            None => *diff_id,
            Some(below) => {
                Digest::from_hasher(Sha256::new().chain_update(format!("{below} {diff_id}")))
            }
        });
    }
    chain
}

fn make_subvolume(layer: &Path, below: Option<&Path>) -> io::Result<()> {
    let layer = File::open(layer)?;
    match below {
        None => btrfs::create_subvolume(&layer, ROOT)?,
        Some(below) => {
            btrfs::snapshot(File::open(below)?, &layer, ROOT, Access::ReadWrite, &[])?;
        }
    }
    Ok(())
}

/// Destroys the subvolume at `path`, or those in the directories below it, the innermost first: those that lie in
/// others keep them from being destroyed. Subvolumes of ours lie in directories of ours alone, a few levels deep.
fn destroy_below(path: &Path) -> io::Result<()> {
    let is_directory = match fs::symlink_metadata(path) {
        Ok(meta) => meta.is_dir(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    if !is_directory {
        return Ok(());
    }
    if is_subvolume(path)? {
        return destroy(path);
    }
    for entry in fs::read_dir(path)? {
        destroy_below(&entry?.path())?;
    }
    Ok(())
}

fn destroy(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name().and_then(|n| n.to_str()))
    else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let root = File::open(path)?;
    // None of ours has others in it; what an administrator's hand made there must not keep a layer from going.
    btrfs::destroy_all(&root, &btrfs::below(&root, btrfs::id(&root)?)?)?;
    Ok(btrfs::destroy(File::open(parent)?, name)?)
}

fn is_btrfs(path: &Path) -> io::Result<bool> {
    Ok(btrfs::is_btrfs(File::open(path)?)?)
}

fn is_subvolume(path: &Path) -> io::Result<bool> {
    let meta = fs::symlink_metadata(path)?;
    Ok(meta.is_dir() && meta.ino() == SUBVOLUME_ROOT && is_btrfs(path)?)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The digest was computed by another program after the text of the specification.
    #[test]
    fn a_chain_is_told_as_oci_tells_it() {
        let diff_ids = [b"a", b"b", b"c"].map(|text| Digest::of(text));
        let ids = chain_ids(&diff_ids);
        assert_eq!(ids[0], diff_ids[0]);
        assert_eq!(
            ids[2].to_string(),
            "sha256:2fce7f8ce91bcf0a1428b36e1024639fdbd9469eea762dba98aa749631885106"
        );
        assert_eq!(chain_ids(&diff_ids[..2]), ids[..2]);
        assert!(chain_ids(&[]).is_empty());
    }
}
