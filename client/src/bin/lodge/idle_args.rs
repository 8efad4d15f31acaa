//! What becomes of a sandbox that nobody uses, as `lodge create` and `lodge update` take it.

use std::time::Duration;

use lodge_client::IdlePolicy;

use crate::units;

// On each option: a heading for the whole group would go on over the options after it.
const HEADING: &str = "When nobody uses it (no live run, no open stream)";

/// The options of it.
#[derive(Debug, clap::Args)]
pub(crate) struct IdleArgs {
    /// Freeze it after this long: no CPU until the next run thaws it; 10m, 2h, or never
    #[arg(long, value_name = "DURATION", value_parser = units::parse_idle, help_heading = HEADING)]
    freeze_after: Option<Duration>,
    /// Stop it after this long: its processes end, its files stay; the next run starts it
    #[arg(long, value_name = "DURATION", value_parser = units::parse_idle, help_heading = HEADING)]
    stop_after: Option<Duration>,
    /// Delete it after this long, with its files
    #[arg(long, value_name = "DURATION", value_parser = units::parse_idle, help_heading = HEADING)]
    delete_after: Option<Duration>,
}

impl IdleArgs {
    /// As the client takes it.
    pub(crate) fn policy(&self) -> IdlePolicy {
        IdlePolicy {
            freeze_after: self.freeze_after,
            stop_after: self.stop_after,
            delete_after: self.delete_after,
        }
    }
}
