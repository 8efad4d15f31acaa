//! What this process keeps mounted of a layer, until somebody asks for it. A layer is known by the inode of its image: its
//! directory may be renamed meanwhile. The mount keeps the inode, so that its number is nobody else's as long as it is here.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Device and inode of an image.
type Key = (u64, u64);

/// Mounts, at most one per layer. They go with this.
#[derive(Debug)]
pub(super) struct Kept<T>(Mutex<HashMap<Key, T>>);

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Kept<T> {
    /// Keeps a mount of the layer whose image this is, in the place of an earlier one.
    pub(super) fn put(&self, image: &File, mount: T) -> io::Result<()> {
        let key = key(image)?;
        let before = self.lock().insert(key, mount);
        // Not under the lock: a last mount takes its time to go.
        drop(before);
        Ok(())
    }

    /// Gives what is kept of the layer whose image this is.
    pub(super) fn take(&self, image: &File) -> io::Result<Option<T>> {
        let key = key(image)?;
        Ok(self.lock().remove(&key))
    }

    /// Each entry is whole whenever the lock is free.
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(image: &File) -> io::Result<Key> {
    let found = image.metadata()?;
    Ok((found.dev(), found.ino()))
}
