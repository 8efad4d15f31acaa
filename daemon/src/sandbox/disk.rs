//! A sandbox's files, as the storage driver sees them: what they take, and the limit that it holds.
//!
//! Nothing here wakes a sandbox: its root is looked at from outside, also while it is frozen.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::id::SandboxId;
use super::limits::{EffectiveLimits, Shortfall};
use super::platform::Platform;
use super::runtime::Relimit;
use crate::error::{Result, chain};
use crate::fault;
use crate::storage::{DiskLimit, DiskUsage, Storage, StorageError};
use crate::store::Record;

/// Why a driver that holds limits holds none here.
const NOT_HELD: &str = "its files were made before there were limits on files";

/// The files of one sandbox. Cheap to clone.
#[derive(Clone)]
pub struct Disk {
    storage: Arc<dyn Storage>,
    /// Its own directory for the driver.
    dir: Arc<Path>,
    /// Its root directory, as the host sees it; `None` where it is not started.
    root: Option<Arc<Path>>,
}

impl Disk {
    /// Those of a sandbox whose PID 1 has this pid on the host; without one, of a sandbox that is not started.
    pub(super) fn of(platform: &Platform, id: &SandboxId, holder: Option<i32>) -> Self {
        let root = holder.map(|pid| PathBuf::from(format!("/proc/{pid}/root")));
        Self {
            storage: Arc::clone(&platform.storage),
            dir: platform.store.layer_dir(id).into(),
            root: root.map(Into::into),
        }
    }

    /// What they take; figures that cannot be had are absent. Blocks: for microseconds, or for a commit of btrfs where the
    /// sandbox is near its limit.
    pub fn usage(&self) -> DiskUsage {
        self.look().unwrap_or_else(|error| {
            tracing::debug!(dir = %self.dir.display(), error = %chain(&error), "usage of files not known");
            DiskUsage::default()
        })
    }

    /// The same for the end of a run: only where the driver knows more than PID 1 has told. A run lasts milliseconds, and a look
    /// at the file of a layer may wait for the disk.
    pub async fn usage_beyond_file_system(&self) -> DiskUsage {
        if self.storage.limits_by_file_system() {
            return DiskUsage::default();
        }
        // Near its limit a driver waits for a commit.
        let this = self.clone();
        let looked = tokio::task::spawn_blocking(move || this.usage()).await;
        looked.unwrap_or_default()
    }

    fn look(&self) -> Result<DiskUsage, StorageError> {
        self.storage.usage(&self.dir, self.root.as_deref())
    }

    /// Has its processes end without a wait for its files, which nobody wants any more.
    pub(super) fn keep_until_removed(&self) {
        if let Some(root) = &self.root {
            self.storage.keep_until_removed(&self.dir, root);
        }
    }

    /// Says of `expected` limits on files what is held of them: a driver may be asked for a limit that it gives this
    /// sandbox from its next start on, or not at all. Where it cannot tell, they stay what is expected.
    pub(super) fn correct(&self, expected: &mut EffectiveLimits) {
        let Ok(usage) = self.look() else { return };
        let held = [
            (&mut expected.disk_bytes, usage.limit_bytes),
            (&mut expected.inodes, usage.inodes_limit),
        ];
        for (expected, held) in held {
            if expected.is_ok() {
                *expected = held.ok_or_else(|| NOT_HELD.to_owned());
            }
        }
    }

    /// Has the new limits on files held, as far as this driver holds any. One that it cannot change now is refused, or, if
    /// the caller takes that, held from the next start on.
    pub(super) fn relimit(&self, relimit: &Relimit) -> Result<()> {
        let (old, new) = (
            relimit.old.spec.limits.disk(),
            relimit.new.spec.limits.disk(),
        );
        fault::around("update.limit files", || match self.set(old, new) {
            Err(StorageError::Unsupported { why, .. })
                if relimit.shortfall == Shortfall::Degrade =>
            {
                tracing::info!(sandbox = %relimit.new.id, why, "limit on files not changed before the next start");
                Ok(())
            }
            set => Ok(set?),
        })
    }

    /// Has the old limits held again.
    pub(super) fn take_back(&self, relimit: &Relimit) {
        let (old, new) = (
            relimit.old.spec.limits.disk(),
            relimit.new.spec.limits.disk(),
        );
        if let Err(error) = self.set(new, old) {
            tracing::warn!(sandbox = %relimit.old.id, error = %chain(&error), "limit on files not taken back");
        }
    }

    /// Has the limits of a record held by a sandbox that an earlier daemon left running: that one may have been killed
    /// between a change of them and its record. What cannot be changed back is shown as it is.
    pub(super) fn hold_again(&self, record: &Record) {
        let wanted = record.spec.limits.disk();
        let Ok(usage) = self.look() else { return };
        let held = DiskLimit {
            bytes: usage.limit_bytes.unwrap_or(wanted.bytes),
            // A driver may hold somewhat more than it was asked for, and never less: a change would change nothing.
            inodes: usage
                .inodes_limit
                .map_or(wanted.inodes, |held| held.min(wanted.inodes)),
        };
        if let Err(error) = self.set(held, wanted) {
            tracing::warn!(sandbox = %record.id, error = %chain(&error), "limit on files is not that of its record");
        }
    }

    fn set(&self, old: DiskLimit, new: DiskLimit) -> Result<(), StorageError> {
        let able = self.storage.abilities();
        let changes = (able.limit_bytes.is_ok() && old.bytes != new.bytes)
            || (able.limit_inodes.is_ok() && old.inodes != new.inodes);
        if !changes {
            return Ok(());
        }
        self.storage.set_limit(&self.dir, self.root.as_deref(), new)
    }
}

#[cfg(test)]
mod tests;
