//! Making a pool larger while sandboxes work in it. The file's length is the truth: a growth that is cut short after the file
//! was made longer is ended by the next daemon, and one that fails before is taken back.

use std::io;
use std::sync::PoisonError;

use lodge_kernel::btrfs;

use super::{Backing, Pool, SIZE_UNIT};
use crate::fault;
use crate::storage::StorageError;

const WHAT: &str = "a pool that grows";

impl Pool {
    /// Gives it this size, rounded down to whole MiB. It takes room of the host only as it is filled.
    ///
    /// # Errors
    /// [`StorageError::Unsupported`] for a pool that is a directory, and for a size below the present one.
    pub fn grow(&self, bytes: u64) -> Result<(), StorageError> {
        let Some(backing) = &self.backing else {
            return Err(unsupported(
                "it is a directory of a btrfs file system: make that one larger".to_owned(),
            ));
        };
        let _alone = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, after) = (backing.len()?, bytes / SIZE_UNIT * SIZE_UNIT);
        if after < before {
            return Err(unsupported(format!(
                "it has {before} bytes already, and does not shrink"
            )));
        }
        self.grow_to(backing, before, after)?;
        tracing::info!(pool = %backing.path.display(), before, after, "pool grown");
        Ok(())
    }

    fn grow_to(&self, backing: &Backing, before: u64, after: u64) -> Result<(), StorageError> {
        let mut taken = false;
        let grown = backing.extend(after).and_then(|()| {
            fault::around("pool.resize", || -> io::Result<()> {
                btrfs::resize(&self.root, after)?;
                taken = true;
                Ok(())
            })
            .map_err(|e| StorageError::io("give its file system the size of", &backing.path, e))
        });
        if grown.is_err() && !taken {
            // Nothing lies in what was added. Once the file system has it, it must stay.
            backing.take_back(before);
        }
        grown
    }

    /// Ends a growth that was cut short when only the file was longer. Where nothing is to be done, the kernel does nothing.
    pub(super) fn finish_growing(&self) -> Result<(), StorageError> {
        let Some(backing) = &self.backing else {
            return Ok(());
        };
        let bytes = backing.len()? / SIZE_UNIT * SIZE_UNIT;
        btrfs::resize(&self.root, bytes)
            .map_err(|e| StorageError::io("give its file system the size of", &backing.path, e))
    }
}

impl Backing {
    fn extend(&self, bytes: u64) -> Result<(), StorageError> {
        fault::around("pool.extend file", || {
            self.file.set_len(bytes)?;
            // On disk before the file system says that it has that much.
            self.file.sync_all()
        })
        .map_err(|e| StorageError::io("make longer", &self.path, e))?;
        fault::around("pool.tell device", || self.device.resized())
            .map_err(|e| StorageError::io("give its device the size of", &self.path, e))
    }

    fn len(&self) -> Result<u64, StorageError> {
        let found = self.file.metadata();
        found
            .map(|meta| meta.len())
            .map_err(|e| StorageError::io("stat", &self.path, e))
    }

    fn take_back(&self, bytes: u64) {
        let back = fault::around("pool.take back", || {
            self.file.set_len(bytes)?;
            self.device.resized()
        });
        if let Err(error) = back {
            tracing::warn!(%error, "the pool's file stays longer; the next start ends its growth");
        }
    }
}

fn unsupported(why: String) -> StorageError {
    StorageError::Unsupported {
        what: WHAT,
        driver: "btrfs",
        why,
    }
}
