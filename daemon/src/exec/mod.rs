//! Runs: starting a command, its output and its end.

/// How a run ended: a pure function of the kernel's facts.
pub mod end;
/// The environment of one call.
pub mod environment;
/// What to run, validated.
pub mod spec;
/// How long a run may take.
pub mod timeout;

/// Runs that an earlier daemon started.
pub mod adopt;
/// Starts runs, within bounds.
pub mod engine;
/// One run, as callers hold it.
pub mod run;
/// The task of a run: output until its end, the end, and what is left afterwards.
mod supervise;
/// The runs of one sandbox: bounds, look-up, and how long ended ones are kept.
pub mod table;

/// The log of one stream: what is kept, who reads.
pub mod log;
/// Replacing secret values in a stream.
mod mask;
/// From a command's pipe to its log.
mod output;
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

pub use end::{EndReason, RunResult};
pub use engine::{Engine, Started};
pub use environment::Secret;
pub use log::Stream;
pub use run::Run;
pub use spec::{RawCommand, RawRunSpec, RunSpec, Stdin};
pub use table::RunTable;
pub use timeout::{RawDuration, TimeoutPolicy};
