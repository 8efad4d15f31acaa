//! The directories of sandboxes under the state directory, and reading and writing their records.
//!
//! ```text
//! lock
//! owner                        what tells this directory from every other one
//! sandboxes/<id>/record.json
//! sandboxes/<id>/identity      whose it is, should the record be damaged
//! sandboxes/<id>/idle.json     how long it has not been used
//! sandboxes/<id>/layer/…       the storage driver's
//! sandboxes/<id>/runs/…        logs of runs
//! doctor/…                     probes of `lodged doctor`
//! trash/<id>/…                 out of sight at once, removed in the background
//! ```

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::identity::Identity;
use super::record::{Damage, Record, Upgrade};
use super::replacement::{Replacement, sync_dir};
use crate::error::is_disk_full;
use crate::fault;
use crate::sandbox::id::SandboxId;

const RECORD_FILE: &str = "record.json";
const LAYER_DIR: &str = crate::storage::OWN_DIR;
const RUNS_DIR: &str = "runs";
/// Where the doctor makes the files of its probes.
pub const PROBE_DIR: &str = "doctor";
/// Far above the largest record that is written: 256 KiB of variables, each byte escaped to six.
const RECORD_BYTES_MAX: u64 = 8 << 20;

/// A failure of the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another daemon works on this directory.
    #[error("state directory {} is in use by {owner}", dir.display())]
    Locked {
        /// The state directory.
        dir: PathBuf,
        /// The lock's owner, for people.
        owner: String,
    },
    /// The directory lets others in.
    #[error("{} may be written by others than root (mode {mode:o}, owner {uid})", dir.display())]
    Exposed {
        /// The directory.
        dir: PathBuf,
        /// Its permissions.
        mode: u32,
        /// Its owner.
        uid: u32,
    },
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

impl StoreError {
    pub(super) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }

    /// Whether there was no room on the disk, for more bytes or another name.
    pub fn is_for_want_of_room(&self) -> bool {
        matches!(self, Self::Io { source, .. } if is_disk_full(source))
    }
}

/// What was found in a sandbox's directory.
#[derive(Debug)]
pub enum Loaded {
    /// A good record.
    Sandbox(Box<Record>),
    /// A record that cannot be used.
    Damaged(SandboxId, Damage),
    /// A create that ended before there was anything to lose.
    Unfinished(SandboxId),
}

/// The directories of sandboxes.
#[derive(Debug)]
pub struct Store {
    sandboxes: PathBuf,
    trash: PathBuf,
    probe: PathBuf,
    upgrade: Upgrade,
}

impl Store {
    /// Makes what is missing. The caller holds the [`super::StateLock`].
    pub fn open(state_dir: &Path) -> Result<Self, StoreError> {
        let store = Self {
            sandboxes: state_dir.join("sandboxes"),
            trash: state_dir.join("trash"),
            probe: state_dir.join(PROBE_DIR),
            upgrade: Upgrade::default(),
        };
        for dir in [&store.sandboxes, &store.trash] {
            make_private_dir(dir)?;
        }
        Ok(store)
    }

    /// What records of older versions get that lack it.
    #[must_use]
    pub fn upgrading_with(mut self, upgrade: Upgrade) -> Self {
        self.upgrade = upgrade;
        self
    }

    /// Where the directories of sandboxes are.
    pub fn sandboxes_dir(&self) -> &Path {
        &self.sandboxes
    }

    /// The directory of a sandbox.
    pub fn dir(&self, id: &SandboxId) -> PathBuf {
        self.sandboxes.join(id.as_str())
    }

    /// The storage driver's directory of a sandbox.
    pub fn layer_dir(&self, id: &SandboxId) -> PathBuf {
        self.dir(id).join(LAYER_DIR)
    }

    /// The storage driver's directories of all sandboxes: also of those that are damaged or being removed, and in entries whose
    /// names are no ids.
    ///
    /// # Errors
    /// Where not all of them can be listed: who removes what none of them has must know all.
    pub fn layer_dirs(&self) -> Result<Vec<PathBuf>, StoreError> {
        let mut dirs = Vec::new();
        for parent in [&self.sandboxes, &self.trash] {
            let listed = |e| StoreError::io("list", parent, e);
            for entry in fs::read_dir(parent).map_err(listed)? {
                dirs.push(entry.map_err(listed)?.path().join(LAYER_DIR));
            }
        }
        Ok(dirs)
    }

    /// The storage driver's directories that are empty or gone though their sandbox has a record, which is written after them: what
    /// was in them is on a disk that is not mounted, and may name anything that seems to be nobody's.
    ///
    /// # Errors
    /// Where not all can be looked into.
    pub fn emptied_layers(&self) -> Result<Vec<PathBuf>, StoreError> {
        let mut emptied = Vec::new();
        for id in ids_in(&self.sandboxes)? {
            let layer = self.layer_dir(&id);
            let is_empty = match fs::read_dir(&layer) {
                Ok(mut entries) => entries.next().is_none(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => true,
                Err(error) => return Err(StoreError::io("list", &layer, error)),
            };
            if is_empty && self.dir(&id).join(RECORD_FILE).exists() {
                emptied.push(layer);
            }
        }
        Ok(emptied)
    }

    /// Where the logs of a sandbox's runs go.
    pub fn runs_dir(&self, id: &SandboxId) -> PathBuf {
        self.dir(id).join(RUNS_DIR)
    }

    /// Makes a sandbox's directory. One that is there already is an error: ids are never reused.
    pub fn make_dir(&self, id: &SandboxId) -> Result<(), StoreError> {
        let dir = self.dir(id);
        for path in [dir.clone(), dir.join(RUNS_DIR), dir.join(LAYER_DIR)] {
            DirBuilder::new()
                .mode(0o700)
                .create(&path)
                .map_err(|e| StoreError::io("create", &path, e))?;
        }
        Ok(())
    }

    /// Writes a sandbox's record, so that after a crash there is the old one or the new one.
    pub fn write(&self, record: &Record) -> Result<(), StoreError> {
        let dir = self.dir(&record.id);
        let path = dir.join(RECORD_FILE);
        let new = fault::around("record.write temp", || {
            Replacement::write(&path, &record.encode())
        })
        .map_err(|e| StoreError::io("write beside", &path, e))?;
        fault::around("record.identity", || Identity::keep(&dir, record))
            .map_err(|e| StoreError::io("write the identity in", &dir, e))?;
        fault::around("record.rename", || new.rename())
            .map_err(|e| StoreError::io("rename to", &path, e))?;
        fault::around("record.sync directory", || sync_dir(&dir))
            .map_err(|e| StoreError::io("sync", &dir, e))?;
        // The sandbox's own directory may be new as well.
        fault::around("record.sync parent", || sync_dir(&self.sandboxes))
            .map_err(|e| StoreError::io("sync", &self.sandboxes, e))
    }

    /// Everything that is there. What does not have an id for a name is not ours and left alone.
    pub fn load(&self) -> Result<Vec<Loaded>, StoreError> {
        Ok(ids_in(&self.sandboxes)?
            .into_iter()
            .map(|id| self.load_one(id))
            .collect())
    }

    fn load_one(&self, id: SandboxId) -> Loaded {
        let mut damage = match self.read_record(&id) {
            Ok(bytes) => match Record::decode(&bytes, &id, &self.upgrade) {
                Ok(record) => return Loaded::Sandbox(Box::new(record)),
                Err(damage) => damage,
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.is_bare(&id) => {
                return Loaded::Unfinished(id);
            }
            Err(error) => Damage {
                reason: format!("its record cannot be read: {error}"),
                tenant: None,
                name: None,
                uid_base: None,
            },
        };
        if let Some(identity) = self.identity(&id) {
            identity.amend(&mut damage);
        }
        Loaded::Damaged(id, damage)
    }

    /// Whose directory this is, by what lies beside the record. What others than root may have written says nothing.
    fn identity(&self, id: &SandboxId) -> Option<Identity> {
        self.check_dir(id).ok()?;
        Identity::read(&self.dir(id), id)
    }

    fn read_record(&self, id: &SandboxId) -> io::Result<Vec<u8>> {
        self.check_dir(id)?;
        read_capped(&self.dir(id).join(RECORD_FILE))
    }

    /// A link, or a directory that others may write to, could lead to a record that they made.
    fn check_dir(&self, id: &SandboxId) -> io::Result<()> {
        let meta = fs::symlink_metadata(self.dir(id))?;
        if !meta.is_dir() || may_be_written_by_others(&meta) {
            let text = "its directory is not root's alone";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(())
    }

    /// Whether a directory without a record holds nothing that a sandbox ever wrote. The record is written before the
    /// sandbox first runs, so that an unfinished create is always bare. What a driver keeps elsewhere is not looked at: a
    /// sandbox that had a run has the traces of it, and one that had none wrote nothing.
    fn is_bare(&self, id: &SandboxId) -> bool {
        let bare = |dir: PathBuf| match fs::read_dir(dir) {
            Ok(mut entries) => entries.next().is_none(),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        bare(self.layer_dir(id).join("upper")) && bare(self.runs_dir(id))
    }

    /// Takes a sandbox's directory out of sight, in one step. From then on it is not listed after a restart either.
    pub fn discard(&self, id: &SandboxId) -> Result<(), StoreError> {
        let dir = self.dir(id);
        let rename = || fs::rename(&dir, self.trash.join(id.as_str()));
        match fault::around("discard.rename", rename) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(|e| StoreError::io("move to trash", &dir, e))?,
        }
        for parent in [&self.sandboxes, &self.trash] {
            fault::around("discard.sync", || sync_dir(parent))
                .map_err(|e| StoreError::io("sync", parent, e))?;
        }
        Ok(())
    }

    /// Takes a sandbox its record, so that it is none any more: for who cannot [`discard`](Self::discard) it and removes the rest
    /// at once.
    pub fn forget(&self, id: &SandboxId) -> Result<(), StoreError> {
        let (dir, record) = (self.dir(id), self.dir(id).join(RECORD_FILE));
        fault::around("discard.forget", || match fs::remove_file(&record) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.and_then(|()| sync_dir(&dir)),
        })
        .map_err(|e| StoreError::io("remove", &record, e))
    }

    /// Discarded sandboxes whose files are still there, each with its uid range where that can be told.
    pub fn trash(&self) -> Result<Vec<(SandboxId, Option<u32>)>, StoreError> {
        let uid_base = |id: &SandboxId| {
            let dir = self.trash.join(id.as_str());
            if let Some(identity) = Identity::read(&dir, id) {
                return Some(identity.uid_base());
            }
            let bytes = read_capped(&dir.join(RECORD_FILE)).ok()?;
            Record::decode(&bytes, id, &self.upgrade)
                .map_or_else(|d| d.uid_base, |record| Some(record.uid_base))
        };
        Ok(ids_in(&self.trash)?
            .into_iter()
            .map(|id| (id.clone(), uid_base(&id)))
            .collect())
    }

    /// Where a discarded sandbox's files are.
    pub fn trash_dir(&self) -> &Path {
        &self.trash
    }

    /// Where the doctor makes the files of its probes. Nothing in it is of value.
    pub fn probe_dir(&self) -> PathBuf {
        self.probe.clone()
    }
}

fn ids_in(dir: &Path) -> Result<Vec<SandboxId>, StoreError> {
    let entries = fs::read_dir(dir).map_err(|e| StoreError::io("list", dir, e))?;
    let mut ids = Vec::new();
    for entry in entries {
        let name = entry
            .map_err(|e| StoreError::io("list", dir, e))?
            .file_name();
        match name.to_str().map(SandboxId::parse) {
            Some(Ok(id)) => ids.push(id),
            _ => tracing::warn!(dir = %dir.display(), ?name, "not a sandbox; left alone"),
        }
    }
    ids.sort();
    Ok(ids)
}

/// Makes a directory that only root may enter; one that others may write is refused.
pub(super) fn make_private_dir(dir: &Path) -> Result<(), StoreError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|e| StoreError::io("create", dir, e))?;
    let meta = fs::symlink_metadata(dir).map_err(|e| StoreError::io("stat", dir, e))?;
    if may_be_written_by_others(&meta) {
        let mode = meta.mode() & 0o7777;
        return Err(StoreError::Exposed {
            dir: dir.to_owned(),
            mode,
            uid: meta.uid(),
        });
    }
    Ok(())
}

fn may_be_written_by_others(meta: &fs::Metadata) -> bool {
    meta.mode() & 0o022 != 0 || meta.uid() != rustix::process::geteuid().as_raw()
}

pub(super) fn read_capped(path: &Path) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
        .open(path)?;
    if may_be_written_by_others(&file.metadata()?) {
        let text = "others than root may write to it";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    let mut bytes = Vec::new();
    file.take(RECORD_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > RECORD_BYTES_MAX {
        return Err(io::Error::from(io::ErrorKind::FileTooLarge));
    }
    Ok(bytes)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
