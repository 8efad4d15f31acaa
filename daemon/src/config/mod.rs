//! Settings, in two stages: raw as typed (with where each came from), then resolved and checked as a whole.
//!
//! A file is overridden by the environment, and that by flags. Unknown keys are errors; all mistakes are reported, not
//! only the first.

/// The command line.
mod arguments;
/// Every key that there is.
mod keys;
/// Settings as typed, from each source.
mod raw;
/// Settings as meant, or the list of mistakes.
mod resolve;

#[cfg(test)]
mod tests;

pub use arguments::{Invocation, ReportFormat, SettingsError};
pub use keys::KEYS;
pub use raw::{Raw, Source, unknown_variables};
pub use resolve::{Config, Listen, LogFormat, Mistake, StorageSettings};
