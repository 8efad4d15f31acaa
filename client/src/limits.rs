//! What a sandbox may use, as it is asked for.

use lodge_proto::v1 as pb;

/// What a sandbox may use; `None` takes the server's default, and in an update leaves it as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// Memory of all runs together, in bytes.
    pub memory_bytes: Option<i64>,
    /// Processes and threads of all runs together.
    pub pids: Option<i64>,
    /// Processor time per second of wall time, in thousandths of one CPU.
    pub cpu_millis: Option<i64>,
    /// Bytes of its files.
    pub disk_bytes: Option<i64>,
    /// Open files per process.
    pub open_files: Option<i64>,
    /// Size of /dev/shm, in bytes.
    pub shm_bytes: Option<i64>,
    /// Its files, where the storage driver counts them.
    pub inodes: Option<i64>,
}

impl Limits {
    pub(crate) fn into_wire(self) -> pb::Limits {
        pb::Limits {
            memory_bytes: self.memory_bytes,
            pids: self.pids,
            cpu_millis: self.cpu_millis,
            disk_bytes: self.disk_bytes,
            open_files: self.open_files,
            shm_bytes: self.shm_bytes,
            inodes: self.inodes,
        }
    }
}
