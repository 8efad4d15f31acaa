//! The processes of a sandbox.

use std::time::SystemTime;

use lodge_proto::v1 as pb;

use crate::error::Result;
use crate::wire::time;

/// A process in a sandbox. `command` is what the process says of itself: text from inside, not to be trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Process {
    /// Its run.
    pub run_id: String,
    /// Its pid inside the sandbox.
    pub pid: i32,
    /// Its user id inside the sandbox.
    pub uid: u32,
    /// The kernel's state letter.
    pub state: String,
    /// Its arguments, joined by blanks; the kernel's name in brackets where it has none.
    pub command: String,
    /// Resident memory, in bytes.
    pub rss_bytes: u64,
    /// When its run was started.
    pub run_started_at: Option<SystemTime>,
    /// Whether its run's own command still lives; false for survivors.
    pub run_live: bool,
}

impl Process {
    pub(crate) fn from_wire(process: pb::Process) -> Result<Self> {
        Ok(Self {
            run_started_at: process.run_started_at.map(time).transpose()?,
            run_id: process.run_id,
            pid: process.pid,
            uid: process.uid,
            state: process.state,
            command: process.command,
            rss_bytes: process.rss_bytes,
            run_live: process.run_live,
        })
    }
}
