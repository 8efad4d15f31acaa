//! The trait that drivers implement.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// A failure of a storage driver.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The host refused a file operation.
    #[error("{action} {}", path.display())]
    Io {
        /// What was done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl StorageError {
    pub(super) fn io(action: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Io {
            action,
            path: path.to_owned(),
            source: source.into(),
        }
    }
}

/// What a root file system is made of.
#[derive(Debug)]
pub struct RootLayers {
    /// Read-only directories, uppermost first.
    pub lowers: Vec<OwnedFd>,
    /// The directory that takes what the sandbox writes.
    pub writable: OwnedFd,
}

/// A storage driver. `dir` is always the sandbox's own directory for it, which exists and is empty at first.
pub trait Storage: Send + Sync + 'static {
    /// The driver's name.
    fn name(&self) -> &'static str;

    /// Why this driver cannot bound the bytes of a sandbox; `None` if it can.
    fn no_disk_limit(&self) -> Option<&'static str>;

    /// Makes what a new sandbox needs.
    fn prepare(&self, dir: &Path) -> Result<(), StorageError>;

    /// Opens what a start needs. `image` are the image's layers, lowest first.
    fn open(&self, dir: &Path, image: &[PathBuf]) -> Result<RootLayers, StorageError>;

    /// Removes a sandbox's files: the entry `name` of the directory `parent`. Its processes are dead and it is out of
    /// everybody's sight.
    fn remove(&self, parent: &Path, name: &str) -> Result<(), StorageError>;
}
