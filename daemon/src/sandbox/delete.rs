//! Deleting: dead, out of sight, then removed in the background. The uid range is free again when the files are gone.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::id::SandboxId;
use super::platform::Platform;
use super::stop;
use crate::error::{Error, Result};
use crate::fault;

/// Trees removed at once: more would only compete for the same disk.
const REMOVALS_AT_ONCE: usize = 2;

/// From a removal that failed to the next try, at first and at most: what failed may be the disk's for a moment, or an
/// operator's to mend, and until the files are gone they keep their space and their uid range.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
const AGAIN_AFTER_MOST: Duration = Duration::from_secs(60);

/// Bounds the removals of this process.
static REMOVALS: Semaphore = Semaphore::const_new(REMOVALS_AT_ONCE);

/// Takes a dead sandbox out of sight, for good. Blocks.
pub(super) fn put_out_of_sight(platform: &Platform, id: &SandboxId) -> Result<()> {
    Ok(platform.store.discard(id)?)
}

/// Removes what is in the trash of a sandbox, in the background.
pub(super) fn remove_in_background(platform: Arc<Platform>, id: SandboxId, uid_base: Option<u32>) {
    if let Some(base) = uid_base {
        platform.uids.leaves(base);
    }
    tokio::spawn(async move {
        let mut pause = AGAIN_AFTER;
        while let Err(error) = try_to_remove(&platform, &id).await {
            if pause == AGAIN_AFTER {
                tracing::error!(
                    sandbox = %id, error = %error.chain(),
                    "what is left of a deleted sandbox could not be removed; it is tried again and again"
                );
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(AGAIN_AFTER_MOST);
        }
        if let Some(base) = uid_base {
            platform.uids.release(base);
        }
        tracing::debug!(sandbox = %id, "files removed");
    });
}

/// Removes what is left when its turn comes. A panic is a failure like others.
async fn try_to_remove(platform: &Arc<Platform>, id: &SandboxId) -> Result<()> {
    let _permit = REMOVALS
        .acquire()
        .await
        .expect("the semaphore is never closed");
    let (platform, id) = (Arc::clone(platform), id.clone());
    tokio::task::spawn_blocking(move || remove_all(&platform, &id))
        .await
        .unwrap_or_else(|error| Err(Error::internal("INTERNAL", "the removal panicked", error)))
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
