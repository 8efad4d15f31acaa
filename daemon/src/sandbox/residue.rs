//! What an earlier daemon left outside of its state directory and that belongs to no sandbox of it any more: the groups of a
//! sandbox whose create was cut short, sockets of holders that are gone.
//!
//! A group is known for ours by the mark that only this state directory's daemon gives, never by its name or place: one
//! without the mark, or with another one, is left alone, and so are its processes. So a daemon that finds its state
//! directory empty, because a disk is not mounted, ends nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use lodge_kernel::cgroup::Parent;

use super::id::SandboxId;
use crate::error::{Error, chain};

/// What was found, in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Swept {
    /// Groups that were ended and removed.
    pub(super) groups: usize,
    /// Sockets and notes of launches that were removed.
    pub(super) sockets: usize,
    /// Groups that are not ours, or could not be removed.
    pub(super) left: usize,
}

/// Removes what belongs to no sandbox of `known`. Blocks; the caller holds the lock on the state directory.
pub(super) fn sweep(parent: &Parent, holders_dir: &Path, known: &BTreeSet<SandboxId>) -> Swept {
    let mut swept = Swept::default();
    let mut in_use = BTreeSet::new();
    let groups = parent.sandboxes().unwrap_or_else(|error| {
        tracing::warn!(error = %chain(&error), "groups of earlier daemons not listed");
        Vec::new()
    });
    for name in groups {
        let Ok(id) = SandboxId::parse(&name) else {
            continue;
        };
        if known.contains(&id) {
            continue;
        }
        if parent.owns(&name) && discard(parent, &id) {
            swept.groups += 1;
        } else {
            tracing::warn!(group = name, "a group without a record is left alone");
            swept.left += 1;
            in_use.insert(id);
        }
    }
    swept.sockets = sweep_sockets(holders_dir, |id| known.contains(id) || in_use.contains(id));
    if swept != Swept::default() {
        tracing::info!(?swept, "what no sandbox has any more");
    }
    swept
}

fn discard(parent: &Parent, id: &SandboxId) -> bool {
    match parent.discard(id.as_str()) {
        Ok(()) => {
            tracing::info!(sandbox = %id, "groups without a record removed");
            true
        }
        Err(error) => {
            let error = Error::from(error);
            tracing::warn!(sandbox = %id, error = %error.chain(), "groups without a record stay");
            false
        }
    }
}

/// Removes the sockets of holders that cannot be there, and the notes of their launches. The directory is root's alone, and ours.
fn sweep_sockets(dir: &Path, in_use: impl Fn(&SandboxId) -> bool) -> usize {
    let Ok(entries) = fs::read_dir(dir) else {
        return 0;
    };
    let stale = entries.flatten().filter(|entry| {
        let name = entry.file_name();
        let id = name.to_str().and_then(|name| {
            name.strip_suffix(".sock")
                .or(name.strip_suffix(".launched"))
        });
        id.and_then(|id| SandboxId::parse(id).ok())
            .is_some_and(|id| !in_use(&id))
    });
    stale
        .filter(|entry| fs::remove_file(entry.path()).is_ok())
        .count()
}
