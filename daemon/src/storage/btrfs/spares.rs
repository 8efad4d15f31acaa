//! Roots made ahead: a snapshot is a commit, and takes a create some milliseconds, and the first run reads the shell. After a restart they are nobody's, and
//! removed: which of them nobody ever wrote to is not known then.

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::removals::Removals;
use super::roots::Roots;
use super::volume::Volume;
use super::warm;
use crate::error::chain;
use crate::storage::StorageError;
use crate::storage::spares::Ahead;

/// Roots of images, with their qgroups.
#[derive(Debug)]
pub(super) struct RootsAhead {
    pub(super) roots: Arc<Roots>,
    pub(super) removals: Arc<Removals>,
}

impl Ahead for RootsAhead {
    /// The image's subvolume.
    type Kind = PathBuf;
    type Spare = Volume;

    const KINDS_MAX: usize = 4;
    const QUIET: Duration = Duration::from_millis(30);
    const AT_LATEST: Duration = Duration::from_millis(300);

    fn dir(&self) -> &Path {
        self.roots.dir()
    }

    fn make(&self, image: &PathBuf) -> Result<Option<Volume>, StorageError> {
        let volume = self.roots.make(image)?;
        match self.roots.open_root(volume) {
            Ok(root) => warm::read_ahead(root.as_fd()),
            Err(error) => tracing::debug!(error = %chain(&error), "nothing is read ahead"),
        }
        Ok(Some(volume))
    }

    fn remove(&self, volume: Volume) -> Result<(), StorageError> {
        self.removals.add(self.roots.destroy(volume)?);
        Ok(())
    }

    /// The next start removes it with all that is nobody's: a stop does not wait for that.
    fn leave(&self, _: Volume) -> Result<(), StorageError> {
        Ok(())
    }
}
