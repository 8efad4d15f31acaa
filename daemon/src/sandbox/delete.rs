//! Deleting: dead, out of sight, then removed in the background. The uid range is free again when the files are gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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

/// Sandboxes that are out of sight and whose files are not removed: those that wait for their turn or for the next try, too.
static WAITING: AtomicU64 = AtomicU64::new(0);

/// Bounds the removals of this process.
static REMOVALS: Semaphore = Semaphore::const_new(REMOVALS_AT_ONCE);

/// Takes a dead sandbox out of sight, for good. Blocks.
pub(super) fn put_out_of_sight(platform: &Platform, id: &SandboxId) -> Result<()> {
    match platform.store.discard(id) {
        Err(error) if error.is_for_want_of_room() => {
            tracing::info!(sandbox = %id, %error, "no room to move it to the trash: it is removed where it is");
            remove_where_it_is(platform, id)
        }
        other => Ok(other?),
    }
}

/// For a full file system: on btrfs a rename needs room that is not there any more, and removing gets it from what the file system
/// keeps for that. The caller waits for it. What a kill in the midst of it leaves is damaged or unfinished, and can be deleted again.
fn remove_where_it_is(platform: &Platform, id: &SandboxId) -> Result<()> {
    platform.store.forget(id)?;
    let sandboxes = platform.store.sandboxes_dir();
    Ok(platform.storage.remove(sandboxes, id.as_str())?)
}

/// How many deleted sandboxes have their files yet.
pub(crate) fn waiting() -> u64 {
    WAITING.load(Ordering::Relaxed)
}

/// One more that waits, as long as it lives.
struct Waiting;

impl Waiting {
    fn begin() -> Self {
        WAITING.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Removes what is in the trash of a sandbox, in the background.
pub(super) fn remove_in_background(platform: Arc<Platform>, id: SandboxId, uid_base: Option<u32>) {
    if let Some(base) = uid_base {
        platform.uids.leaves(base);
    }
    let waiting = Waiting::begin();
    tokio::spawn(async move {
        let _waiting = waiting;
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
