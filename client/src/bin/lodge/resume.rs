//! `lodge resume`: sandboxes that are frozen.

use std::process::ExitCode;

use anyhow::Result;

use crate::cli::Daemon;
use crate::each;

/// Thaw sandboxes that are frozen
///
/// A run does so by itself. One that runs is left as it is. Prints the names of those that run.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    sandboxes: each::Sandboxes,
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<ExitCode> {
    each::of(daemon, &args.sandboxes, async |sandbox| {
        sandbox.resume().await.map(drop)
    })
    .await
}
