//! What an earlier daemon left outside of its state directory and that belongs to no sandbox of it any more: the groups of a
//! sandbox whose create was cut short, sockets of holders that are gone.
//!
//! A group is known for ours by the mark that only this state directory's daemon gives, never by its name or place: one
//! without the mark, or with another one, is left alone, and so are its processes. So a daemon that finds its state
//! directory empty, because a disk is not mounted, ends nothing. So it is with the sockets: the note of
//! a launch says whose it is.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use lodge_kernel::cgroup::Parent;

use super::id::SandboxId;
use super::launched::{self, Launched};
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

/// Removes what belongs to no sandbox of `known`. `owner` is the mark of our state directory. Blocks; the caller holds the lock
/// on that.
pub(super) fn sweep(
    parent: &Parent,
    holders_dir: &Path,
    owner: &str,
    known: &BTreeSet<SandboxId>,
) -> Swept {
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
    let is_in_use = |id: &SandboxId| known.contains(id) || in_use.contains(id);
    swept.sockets = sweep_sockets(holders_dir, owner, is_in_use);
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

/// Removes the sockets of holders that cannot be there, and the notes of their launches. The directory is root's alone, but a
/// daemon of another state directory may have been given the same one: its holders live, whether it is up or not.
fn sweep_sockets(dir: &Path, owner: &str, in_use: impl Fn(&SandboxId) -> bool) -> usize {
    let paths = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    let ids: BTreeSet<_> = paths.filter_map(|path| sandbox_of(&path)).collect();
    let (stale, others): (Vec<_>, Vec<_>) = ids
        .into_iter()
        .filter(|id| !in_use(id))
        .partition(|id| launched::read_in(dir, id).is_none_or(|note| is_owned(&note, owner)));
    if !others.is_empty() {
        tracing::warn!(
            dir = %dir.display(), sandboxes = others.len(),
            "sandboxes of another state directory are left alone: give each daemon a runtime_dir of its own"
        );
    }
    let files = stale
        .iter()
        .flat_map(|id| [format!("{id}.sock"), format!("{id}.launched")]);
    files
        .filter(|file| fs::remove_file(dir.join(file)).is_ok())
        .count()
}

/// A note without a mark was made by a daemon that had none.
fn is_owned(note: &Launched, owner: &str) -> bool {
    note.owner.is_empty() || note.owner == owner
}

/// Whose socket or note a file is.
fn sandbox_of(path: &Path) -> Option<SandboxId> {
    let name = path.file_name()?.to_str()?;
    let id = name
        .strip_suffix(".sock")
        .or(name.strip_suffix(".launched"))?;
    SandboxId::parse(id).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_another_state_directory_are_left_alone() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let [ours, theirs, older] = [(); 3].map(|()| SandboxId::random());
        for (id, note) in [
            (&ours, r#"{"open_files":1,"shm_bytes":1,"owner":"us"}"#),
            (&theirs, r#"{"open_files":1,"shm_bytes":1,"owner":"them"}"#),
            (&older, r#"{"open_files":1,"shm_bytes":1}"#),
        ] {
            fs::write(dir.path().join(format!("{id}.sock")), "").expect("new");
            fs::write(dir.path().join(format!("{id}.launched")), note).expect("new");
        }
        assert_eq!(sweep_sockets(dir.path(), "us", |_| false), 4);
        assert!(dir.path().join(format!("{theirs}.sock")).exists());
        assert!(launched::read_in(dir.path(), &theirs).is_some());
    }
}
