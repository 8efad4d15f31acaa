//! `lodge resume`: sandboxes that are frozen.

use std::process::ExitCode;

use anyhow::Result;

use crate::cli::Daemon;
use crate::each;
use crate::sandbox_arg::SandboxArg;

/// Thaw sandboxes that are frozen
///
/// A run does so by itself. One that runs is left as it is. Prints the names of those that run.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Names, or `id:` and ids
    #[arg(required = true)]
    names: Vec<SandboxArg>,
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<ExitCode> {
    let client = daemon.connect().await?;
    each::of(&client, &args.names, async |sandbox| {
        sandbox.resume().await.map(drop)
    })
    .await
}
