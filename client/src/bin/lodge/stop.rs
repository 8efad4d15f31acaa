//! `lodge stop`: sandboxes' processes, not their files.

use std::process::ExitCode;

use anyhow::Result;

use crate::cli::Daemon;
use crate::each;
use crate::sandbox_arg::SandboxArg;

/// End all processes of sandboxes and keep their files
///
/// The next run starts them again. Prints the names of those that are stopped.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Names, or `id:` and ids
    #[arg(required = true)]
    names: Vec<SandboxArg>,
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<ExitCode> {
    let client = daemon.connect().await?;
    each::of(&client, &args.names, async |sandbox| {
        sandbox.stop().await.map(drop)
    })
    .await
}
