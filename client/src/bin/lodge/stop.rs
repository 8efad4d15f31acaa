//! `lodge stop`: sandboxes' processes, not their files.

use std::process::ExitCode;

use anyhow::Result;

use crate::cli::Daemon;
use crate::each;

/// End all processes of sandboxes and keep their files
///
/// The next run starts them again. Prints the names of those that are stopped.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    sandboxes: each::Sandboxes,
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<ExitCode> {
    each::of(daemon, &args.sandboxes, async |sandbox| {
        sandbox.stop().await.map(drop)
    })
    .await
}
