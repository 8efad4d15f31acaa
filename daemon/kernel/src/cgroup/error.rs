//! What can go wrong with a control group, with the file it happened on.

use std::path::PathBuf;

use nix::errno::Errno;

/// The result of a cgroup operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a cgroup operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// One of the kernel's own tables could not be read.
    #[error("cannot read {path}")]
    Table {
        /// The table's path under /proc.
        path: &'static str,
        /// What reading it returned.
        #[source]
        source: std::io::Error,
    },
    /// A call on a file or directory of the hierarchy failed.
    #[error("cannot {action} {path}")]
    File {
        /// What we were doing, as a verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the kernel answered.
        #[source]
        source: Errno,
    },
    /// A device rule was refused; the sandbox must not start without it.
    #[error("cannot restrict devices in {path}")]
    Devices {
        /// The group.
        path: PathBuf,
        /// What cgroups-rs reports.
        #[source]
        source: cgroups_rs::fs::error::Error,
    },
    /// The program that holds the rules of devices on cgroup v2 was refused; the sandbox must not start without it.
    #[error("cannot restrict devices in {path}")]
    DeviceProgram {
        /// The group.
        path: PathBuf,
        /// The kernel's word.
        #[source]
        source: Errno,
    },
    /// No cgroup v2 hierarchy is mounted: [`Host::mount_unified`](super::Host::mount_unified) mends that.
    #[error("no cgroup v2 hierarchy is mounted")]
    NoUnified,
    /// A group's name would leave the subtree or be hidden in it.
    #[error("{name:?} cannot name a control group")]
    Name {
        /// The refused name.
        name: String,
    },
    /// The group cannot go while processes are in it.
    #[error("processes are still in {path}")]
    Populated {
        /// The group.
        path: PathBuf,
    },
    /// Not every process froze in time.
    #[error("{path} did not freeze in time")]
    Unsettled {
        /// The group.
        path: PathBuf,
    },
}

impl Error {
    /// The kernel's answer, where there is one.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::File { source, .. } => Some(*source),
            _ => None,
        }
    }
}
