//! Failures of the parts below as errors of a call. The caller learns what was not done; the paths of the host are in the
//! causes, for the log.

use std::io;

use lodge_kernel::cgroup;

use crate::error::{Error, ErrorKind};
use crate::holder::HolderError;
use crate::storage::StorageError;
use crate::store::StoreError;

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::Locked { .. } | StoreError::Exposed { .. } => {
                let text = error.to_string();
                Self::new(ErrorKind::FailedPrecondition, "STATE_DIR_UNUSABLE", text)
            }
            StoreError::Io { source, .. } if is_full(source) => host_disk_full().caused_by(error),
            StoreError::Io { .. } => Self::internal(
                "STORE_FAILED",
                "the sandbox's record could not be handled",
                error,
            ),
        }
    }
}

impl From<StorageError> for Error {
    fn from(error: StorageError) -> Self {
        match &error {
            StorageError::Io { source, .. } if is_full(source) => host_disk_full().caused_by(error),
            StorageError::Io { .. } => Self::internal(
                "STORAGE_FAILED",
                "the sandbox's files could not be handled",
                error,
            ),
        }
    }
}

impl From<cgroup::Error> for Error {
    fn from(error: cgroup::Error) -> Self {
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
                "no sandbox can be started until lodged is restarted",
            ),
            HolderError::Gone => Self::new(
                ErrorKind::Unavailable,
                "SANDBOX_STOPPED",
                "the sandbox has just stopped",
            )
            .hint("call again: that starts it"),
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
            ),
        }
        .caused_by(error)
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

fn host_disk_full() -> Error {
    Error::new(
        ErrorKind::ResourceExhausted,
        "HOST_DISK_FULL",
        "the host's disk is full",
    )
}
