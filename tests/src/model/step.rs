//! What a caller does to one sandbox, and what it may be told.

use lodge_proto::v1::SandboxState;

/// One call to a sandbox, named by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Get or create.
    Acquire,
    /// A run that adds this number to a file.
    Write(u32),
    /// A run that reads the file.
    Read,
    /// A run that leaves a process behind.
    Leave,
    /// The list of processes.
    Processes,
    /// Freeze.
    Pause,
    /// Thaw.
    Resume,
    /// Start.
    Start,
    /// End every process.
    Stop,
    /// End every process and remove the files.
    Delete,
    /// Look.
    Get,
}

/// What the caller was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Its sandbox's id, and whether it was created.
    Acquired {
        /// The daemon's id.
        id: String,
        /// Whether this call created it.
        created: bool,
    },
    /// The run succeeded.
    Ran,
    /// The run succeeded; the numbers in the file.
    Numbers(Vec<u32>),
    /// The run was ended by a stop or a delete.
    Cut,
    /// So many processes.
    Count(usize),
    /// The sandbox is in this state.
    Is(SandboxState),
    /// It is deleted.
    Deleted,
    /// Refused, for the reason of this code.
    Refused(String),
    /// The connection broke: nobody knows what was done.
    Unanswered,
}

/// A step and its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// What was asked.
    pub step: Step,
    /// What came back.
    pub answer: Answer,
}
