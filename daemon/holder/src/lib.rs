//! The launcher and the holder (PID 1 of a sandbox): single-threaded, no tokio, and nothing of them lies in a sandbox's
//! root file system. The holder is forked from the launcher without an exec, so that its memory stays out of reach of the
//! sandbox's own root. Neither ever holds a secret in its own heap: what a command gets passes through memfds.
//!
//! Reading order:

mod versions; // which version of the protocol two sides use
pub mod protocol; // packets and the descriptors that go with them
pub mod launcher; // the process that forks holders
mod init; // PID 1 makes its sandbox: a table of named steps
mod serve; // PID 1 serves: runs, deadlines, exits
mod command; // what happens between a run's fork and its exec

pub use serve::ROOM;
