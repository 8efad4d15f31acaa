//! The trait that drivers implement, and what it speaks of.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::error::is_disk_full;
use crate::fault::Injected;

/// A failure of a storage driver.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
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
    /// The host has no more than its reserve left.
    #[error(
        "the host has {free_bytes} bytes free for sandboxes, and {reserve_bytes} of them are kept back"
    )]
    Reserve {
        /// What is free where the files of sandboxes lie.
        free_bytes: u64,
        /// What is never given to sandboxes.
        reserve_bytes: u64,
    },
    /// The driver cannot do this.
    #[error("{what}: unsupported by the {driver} storage driver: {why}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
        /// The driver's name.
        driver: &'static str,
        /// What is in the way.
        why: String,
    },
    /// A limit below what the sandbox has already.
    #[error(
        "the new limit of {limit_bytes} bytes is less than the {used_bytes} that its files take"
    )]
    InUse {
        /// What was asked for.
        limit_bytes: u64,
        /// What is used.
        used_bytes: u64,
    },
    /// The driver cannot work on this host or with these settings.
    #[error("{what}")]
    Unfit {
        /// What is wrong.
        what: String,
        /// How it is mended.
        hint: &'static str,
    },
}

impl StorageError {
    pub(super) fn io(action: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Io {
            action,
            path: path.to_owned(),
            source: source.into(),
        }
    }

    /// Whether there was no room on the disk.
    pub(super) fn is_for_want_of_room(&self) -> bool {
        matches!(self, Self::Io { source, .. } if is_disk_full(source))
    }
}

/// So that a fault point is around what fails with one of these, and nothing of it is lost.
impl From<Injected> for StorageError {
    fn from(injected: Injected) -> Self {
        Self::io("pass", Path::new("a fault point"), injected)
    }
}

/// The name of a sandbox's own directory for its driver, in the directory of the sandbox.
pub const OWN_DIR: &str = "layer";

/// Where a sandbox's files lie.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The sandbox's own directory for its driver. It exists, and is empty at first.
    pub dir: &'a Path,
    /// What the image is made of, lowest first: [`crate::image::Image::roots`].
    pub image: &'a [PathBuf],
}

/// What bounds a sandbox's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskLimit {
    /// Bytes that they may take.
    pub bytes: u64,
    /// How many they may be, where the driver has a count of its own.
    pub inodes: u64,
}

/// What a sandbox's files take now. A figure that the driver does not have is absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Bytes on disk, those of the image excluded.
    pub bytes: Option<u64>,
    /// The limit that is held, in bytes.
    pub limit_bytes: Option<u64>,
    /// Files, directories and links.
    pub inodes: Option<u64>,
    /// The limit that is held.
    pub inodes_limit: Option<u64>,
}

impl DiskUsage {
    /// Whether a write of this many bytes, or of one more file, would find no room.
    pub fn is_full(&self, bytes: u64) -> bool {
        let over = |used: Option<u64>, limit: Option<u64>, more| {
            used.zip(limit)
                .is_some_and(|(used, limit)| used.saturating_add(more) > limit)
        };
        over(self.bytes, self.limit_bytes, bytes) || over(self.inodes, self.inodes_limit, 1)
    }
}

/// What all sandboxes of this daemon share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostDisk {
    /// The driver's name.
    pub driver: &'static str,
    /// The directory or pool file in which the files of sandboxes lie.
    pub path: PathBuf,
    /// Size of the pool or of the file system, in bytes.
    pub size_bytes: u64,
    /// What is used of it.
    pub used_bytes: u64,
    /// What the host's own file system has free.
    pub host_free_bytes: u64,
    /// What is kept back from sandboxes.
    pub reserve_bytes: u64,
    /// Deleted sandboxes whose files were removed, and whose space has not come back yet.
    pub being_removed: u64,
}

/// What the disk has that a pool's file lies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beneath {
    /// Bytes that are free there, without those that files in the pool have and that are not written yet.
    pub free_bytes: u64,
    /// What is to be left there.
    pub reserve_bytes: u64,
}

/// What a driver can hold or do, or why it cannot.
#[derive(Debug, Clone, Copy)]
pub struct Abilities {
    /// A limit on the bytes of a sandbox.
    pub limit_bytes: Result<(), &'static str>,
    /// A limit on the number of its files.
    pub limit_inodes: Result<(), &'static str>,
    /// A pool that grows.
    pub grow: Result<(), &'static str>,
}

/// What a root file system is made of.
#[derive(Debug)]
pub enum Root {
    /// An overlay, which the sandbox itself mounts.
    Overlay {
        /// Read-only directories, uppermost first (O_PATH).
        lowers: Vec<OwnedFd>,
        /// What takes its writes: has the directories `upper` and `work`.
        writable: Writable,
    },
    /// One tree that the sandbox has for itself (O_PATH).
    Whole(OwnedFd),
}

/// What takes the writes of an overlay.
#[derive(Debug)]
pub enum Writable {
    /// A directory of a mounted file system (O_PATH).
    Directory(OwnedFd),
    /// A mount of its own that is attached nowhere, as of fsmount(2).
    Mount(OwnedFd),
}

/// A storage driver. All calls block. No two of them are about the same sandbox at once, except [`usage`](Self::usage).
///
/// Any of them may fail with [`StorageError::Io`], of which the kind [tells](crate::error::is_disk_full) whether it was for want
/// of room. What else can be is said with each.
pub trait Storage: Send + Sync + 'static {
    /// The driver's name.
    fn name(&self) -> &'static str;

    /// What it can hold and do.
    fn abilities(&self) -> Abilities;

    /// Whether a sandbox's limits are those of its own file system, so that its PID 1 sees as much of them as the driver.
    fn limits_by_file_system(&self) -> bool {
        false
    }

    /// Refuses where the host has no more than its reserve left.
    ///
    /// # Errors
    /// [`StorageError::Reserve`].
    fn admit(&self) -> Result<(), StorageError>;

    /// Makes what a new sandbox needs. What it leaves when it fails or is killed, [`remove`](Self::remove) removes.
    ///
    /// # Errors
    /// [`StorageError::Unsupported`] for a limit that it cannot hold; [`StorageError::Unfit`] for an image of another form.
    fn prepare(&self, place: Place<'_>, limit: DiskLimit) -> Result<(), StorageError>;

    /// Whether [`open`](Self::open) would find everything. Changes nothing.
    ///
    /// # Errors
    /// Where it would not.
    fn check(&self, place: Place<'_>) -> Result<(), StorageError>;

    /// Opens what a start needs, and has the limit held.
    ///
    /// # Errors
    /// Where something is gone or damaged: it is never made anew. [`StorageError::Unsupported`] as for
    /// [`prepare`](Self::prepare).
    fn open(&self, place: Place<'_>, limit: DiskLimit) -> Result<Root, StorageError>;

    /// Has another limit held from now on, or leaves it as it was. `root` is the root directory of a sandbox that is
    /// started, as the host sees it (`/proc/<holder>/root`).
    ///
    /// # Errors
    /// [`StorageError::InUse`] for less than is used; [`StorageError::Unsupported`] for what cannot be held now, or ever.
    fn set_limit(
        &self,
        dir: &Path,
        root: Option<&Path>,
        limit: DiskLimit,
    ) -> Result<(), StorageError>;

    /// What its files take. `root`: as for [`set_limit`](Self::set_limit). Changes nothing.
    ///
    /// # Errors
    /// Where it cannot be told.
    fn usage(&self, dir: &Path, root: Option<&Path>) -> Result<DiskUsage, StorageError>;

    /// Told before the processes of a sandbox that is to be deleted are ended: what the kernel would do at their end and
    /// takes long is put off until [`remove`](Self::remove). `root`: as for [`set_limit`](Self::set_limit).
    fn keep_until_removed(&self, _dir: &Path, _root: &Path) {}

    /// Removes a sandbox's files: the entry `name` of the directory `parent`, in which its own directory is. Its processes
    /// are dead and it is out of everybody's sight.
    ///
    /// # Errors
    /// Where some of it stays: it may be called again. Nothing there is no error.
    fn remove(&self, parent: &Path, name: &str) -> Result<(), StorageError>;

    /// Removes what no sandbox has: `dirs` are the own directories of all that are there, also of damaged ones and of
    /// those being removed. Called once, before anything is created.
    ///
    /// # Errors
    /// Where some of it stays. A directory that cannot be read is none: then all stays that it may name.
    fn sweep(&self, dirs: &[PathBuf]) -> Result<(), StorageError>;

    /// What all sandboxes share.
    ///
    /// # Errors
    /// The host's.
    fn host(&self) -> Result<HostDisk, StorageError>;

    /// What is free below the file system that images and sandboxes share. None where that is the host's own.
    ///
    /// # Errors
    /// The host's.
    fn beneath(&self) -> Result<Option<Beneath>, StorageError> {
        Ok(None)
    }

    /// Gives the pool this size.
    ///
    /// # Errors
    /// [`StorageError::Unsupported`] without a pool that grows, and for less than it has.
    fn grow(&self, bytes: u64) -> Result<HostDisk, StorageError>;

    /// Holds sandboxes back from the host's reserve: called every second by the daemon while it serves.
    ///
    /// # Errors
    /// Where some are not held back; it is called again.
    fn keep_reserve(&self) -> Result<(), StorageError>;
}
