//! Runs: starting a command, its output and its end.

/// How a run ended: a pure function of the kernel's facts.
pub mod end;
/// The environment of one call.
pub mod environment;
/// What to run, validated.
pub mod spec;
/// How long a run may take.
pub mod timeout;

/// When something happened, and how long ago.
mod age;
/// What is written down of a run: lines of the journal.
mod entry;
/// Which ended runs are kept.
mod history;
/// The file of a sandbox in which the ends of its runs are.
mod journal;
/// The beginning of a command, for lists.
mod preview;
/// The caller's own names for calls.
mod requests;
/// How much is kept of ended runs on this node.
mod retention;

/// Runs that an earlier daemon started.
pub mod adopt;
/// Where the sandbox had no room left at the end of a run.
mod disk_full;
/// Runs that nobody can tell of any more.
mod lost;
/// Starts runs, within bounds.
pub mod engine;
/// Whether a call is to start a run.
mod ticket;
/// One run, as callers hold it.
pub mod run;
/// The task of a run: output until its end, the end, and what is left afterwards.
mod supervise;
/// Want of memory ends a whole run.
mod oom;
/// The runs of one sandbox: bounds, look-up, and how long ended ones are kept.
pub mod table;

/// The log of one stream: what is kept, who reads.
pub mod log;
/// Replacing secret values in a stream.
mod mask;
/// From a command's pipe to its log.
mod output;
/// Turns at moving output.
mod turns;
/// Threads that move output.
mod movers;
/// The pipes of a run.
mod plumbing;
/// The secrets of a run, where the holder keeps them.
mod secrets_fd;
/// Output of a run with secrets: spool in memory, masked log.
mod spool;
/// A command's standard input.
pub mod stdin;

/// The processes of a sandbox.
pub mod ps;
/// Searching a run's log for lines.
pub mod search;
/// A run as a sequence of events.
pub mod stream;
/// Output cut to a budget, for a result.
pub mod view;

pub use end::{DiskFullPlace, EndReason, RunResult};
pub use engine::{Engine, EngineSettings, Origin, Started};
pub use entry::Extent;
pub use environment::Secret;
pub use log::Stream;
pub use run::Run;
pub use spec::{RawCommand, RawRunSpec, RunSpec, Stdin};
pub use table::{Listed, Page, RunTable, Which};
pub use ticket::{Launch, Ticket};
pub use timeout::{RawDuration, TimeoutPolicy};
