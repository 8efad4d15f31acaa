//! `lodge start`: sandboxes that are stopped.

use std::process::ExitCode;

use anyhow::Result;

use crate::cli::Daemon;
use crate::each;

/// Start sandboxes that are stopped
///
/// A run does so by itself. One that runs is left as it is. Prints the names of those that are started.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    sandboxes: each::Sandboxes,
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<ExitCode> {
    each::of(daemon, &args.sandboxes, async |sandbox| {
        sandbox.start().await.map(drop)
    })
    .await
}
