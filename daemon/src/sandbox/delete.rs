//! Deleting: dead, out of sight, then removed in the background. The uid range is free again when the files are gone.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::id::SandboxId;
use super::platform::Platform;
use super::stop;
use crate::error::{Result, chain};
use crate::fault;

/// Trees removed at once: more would only compete for the same disk.
const REMOVALS_AT_ONCE: usize = 2;

/// Bounds the removals of this process.
static REMOVALS: Semaphore = Semaphore::const_new(REMOVALS_AT_ONCE);

/// Takes a dead sandbox out of sight, for good. Blocks.
pub(super) fn put_out_of_sight(platform: &Platform, id: &SandboxId) -> Result<()> {
    Ok(platform.store.discard(id)?)
}

/// Removes what is in the trash of a sandbox, in the background.
pub(super) fn remove_in_background(platform: Arc<Platform>, id: SandboxId, uid_base: Option<u32>) {
    tokio::spawn(async move {
        let _permit = REMOVALS
            .acquire()
            .await
            .expect("the semaphore is never closed");
        let removal = tokio::task::spawn_blocking(move || remove(&platform, &id, uid_base));
        if let Err(error) = removal.await {
            tracing::error!(error = %chain(&error), "removal of a deleted sandbox panicked");
        }
    });
}

fn remove(platform: &Platform, id: &SandboxId, uid_base: Option<u32>) {
    match remove_all(platform, id) {
        Ok(()) => {
            if let Some(base) = uid_base {
                platform.uids.release(base);
            }
            tracing::debug!(sandbox = %id, "files removed");
        }
        Err(error) => tracing::error!(
            sandbox = %id, error = %error.chain(),
            "what is left of a deleted sandbox could not be removed; tried again at the next start"
        ),
    }
}

/// Removes all that still has ids of a sandbox that is out of sight: its processes, if a failed start left any, and its
/// files. Blocks.
pub(super) fn remove_all(platform: &Platform, id: &SandboxId) -> Result<()> {
    stop::end_leftovers(platform, id)?;
    let trash = platform.store.trash_dir();
    fault::around("delete.remove files", || {
        Ok(platform.storage.remove(trash, id.as_str())?)
    })
}
