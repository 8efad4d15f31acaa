//! A run's command, from the fork to the exec.

mod environment;
mod exec;
mod start;
mod user;

pub(crate) use start::start;

/// Descriptor number of a long script, in the child. The script's own first words close it.
const SCRIPT_FD: i32 = 3;

/// Descriptor number of the pipe on which the child tells why it could not execute its program. Closed by the exec.
const STATUS_FD: i32 = 4;

/// First descriptor number that the child closes before it does anything that the caller chose.
const FIRST_UNWANTED_FD: u32 = 5;

/// Exit status where the program was not found, and where it could not be executed, as shells have it.
const NOT_FOUND: i32 = 127;
const NOT_EXECUTABLE: i32 = 126;
