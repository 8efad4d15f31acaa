//! `lodge rm`: sandboxes with their files.

use std::process::ExitCode;

use anyhow::Result;

use crate::cli::Daemon;
use crate::each;

/// Delete sandboxes with all their processes and files
///
/// Works from every state, and does not ask. Prints the names of those that are gone.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    sandboxes: each::Sandboxes,
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<ExitCode> {
    each::of(daemon, &args.sandboxes, async |sandbox| {
        sandbox.delete().await
    })
    .await
}
