//! Failures of the parts below as errors of a call. The caller learns what was not done; the paths of the host are in the
//! causes, for the log.

use std::io;

use lodge_kernel::cgroup;
use nix::errno::Errno;

use crate::error::{Error, ErrorKind, is_disk_full, is_shortage};
use crate::holder::HolderError;
use crate::storage::StorageError;
use crate::store::StoreError;

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::Locked { .. } | StoreError::Exposed { .. } => {
                let text = error.to_string();
                Self::new(ErrorKind::FailedPrecondition, "STATE_DIR_UNUSABLE", text)
                    .hint("it belongs to root alone, and to one lodged")
            }
            StoreError::Io { source, .. } if is_disk_full(source) => {
                host_disk_full().caused_by(error)
            }
            StoreError::Io { .. } => Self::internal(
                "STORE_FAILED",
                "the sandbox's record could not be handled",
                error,
            )
            .hint("the daemon's log names the file"),
        }
    }
}

impl From<StorageError> for Error {
    fn from(error: StorageError) -> Self {
        match &error {
            StorageError::Io { source, .. } if is_disk_full(source) => host_disk_full().caused_by(error),
            StorageError::Io { .. } => Self::internal(
                "STORAGE_FAILED",
                "the sandbox's files could not be handled",
                error,
            )
            .hint("the daemon's log names the file"),
            StorageError::Reserve { .. } => Self::new(
                ErrorKind::ResourceExhausted,
                "HOST_DISK_RESERVE",
                error.to_string(),
            )
            .hint("delete sandboxes or images, or make room on the host; `lodge df` shows who has what"),
            StorageError::Unsupported { .. } => Self::new(
                ErrorKind::Unsupported,
                "UNSUPPORTED_BY_STORAGE",
                error.to_string(),
            )
            .hint("`lodge doctor` shows what each storage driver can do"),
            StorageError::InUse { .. } => Self::new(
                ErrorKind::FailedPrecondition,
                "DISK_IN_USE",
                error.to_string(),
            )
            .hint("delete files in the sandbox first"),
            StorageError::Unfit { hint, .. } => Self::new(
                ErrorKind::FailedPrecondition,
                "STORAGE_UNFIT",
                error.to_string(),
            )
            .hint(*hint),
        }
    }
}

impl From<cgroup::Error> for Error {
    fn from(error: cgroup::Error) -> Self {
        if let cgroup::Error::Unsettled { .. } = error {
            return did_not_settle().caused_by(error);
        }
        if error.errno().is_some_and(|errno| is_shortage(errno as i32)) {
            return Self::from_shortage("the sandbox's cgroup could not be handled", error);
        }
        Self::internal(
            "CGROUP_FAILED",
            "the sandbox's cgroup could not be handled",
            error,
        )
        .hint("run `lodged doctor` on the host")
    }
}

impl From<HolderError> for Error {
    fn from(error: HolderError) -> Self {
        match &error {
            HolderError::LauncherGone => Self::new(
                ErrorKind::Unavailable,
                "LAUNCHER_GONE",
                "the process that starts sandboxes has just died; lodged starts another",
            )
            .hint("call again in a moment"),
            HolderError::Gone => Self::new(
                ErrorKind::Unavailable,
                "SANDBOX_STOPPED",
                "the sandbox has just stopped",
            )
            .hint("call again: that starts it"),
            HolderError::Silent => Self::new(
                ErrorKind::Unavailable,
                "HOLDER_UNREACHABLE",
                "PID 1 of the sandbox does not answer",
            )
            .hint("if it lasts, stop the sandbox: the next run starts it anew"),
            HolderError::Step(step) if is_want_of_room(step.errno) => host_disk_full(),
            HolderError::Step(step) if is_shortage(step.errno) => {
                let (name, object) = (&step.step, &step.object);
                let text = format!("the host has no more of what {name} takes ({object})");
                return Self::from_shortage(text, error);
            }
            HolderError::Os { what, source } if source.raw_os_error().is_some_and(is_shortage) => {
                return Self::from_shortage(format!("cannot {what}"), error);
            }
            HolderError::Step(step) => {
                let (name, object) = (&step.step, &step.object);
                let cause = io::Error::from_raw_os_error(step.errno);
                let text = format!("{name} on {object} failed: {cause}");
                Self::new(ErrorKind::Internal, "HOLDER_FAILED", text)
                    .hint("run `lodged doctor` on the host")
            }
            _ => Self::new(
                ErrorKind::Internal,
                "HOLDER_FAILED",
                "talking to the sandbox failed",
            )
            .hint("stop the sandbox: its next run starts it anew"),
        }
        .caused_by(error)
    }
}

/// The error of a pause that was undone.
pub(super) fn did_not_settle() -> Error {
    Error::new(
        ErrorKind::Aborted,
        "FREEZE_DID_NOT_SETTLE",
        "not every process could be frozen in time; the sandbox goes on",
    )
    .hint("pause again; `lodge ps` shows what runs in it")
}

/// The error of a change that panicked. The panic itself is on standard error, with its place.
pub(super) fn panicked() -> Error {
    Error::new(
        ErrorKind::Internal,
        "INTERNAL",
        "a fault of lodged; see its log",
    )
}

/// The file system under a sandbox's files lets nobody write.
pub(super) fn files_read_only() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "SANDBOX_FILES_READ_ONLY",
        "the file system that has the sandbox's files is read-only",
    )
    .hint("the kernel may have made it so after an error of the disk: see the host's log, and remount it")
}

/// Whether an errno says that there is no room on a disk, or no more of it for whoever asked.
pub(super) fn is_want_of_room(errno: i32) -> bool {
    [Errno::ENOSPC as i32, Errno::EDQUOT as i32].contains(&errno)
}

pub(super) fn host_disk_full() -> Error {
    Error::new(
        ErrorKind::ResourceExhausted,
        "HOST_DISK_FULL",
        "the host's disk is full",
    )
    .hint("delete sandboxes or images, or make room on the host")
}
