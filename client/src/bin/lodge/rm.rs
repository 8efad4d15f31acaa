//! `lodge rm`: sandboxes with their files.

use std::process::ExitCode;

use anyhow::Result;

use crate::cli::Daemon;
use crate::each;
use crate::sandbox_arg::SandboxArg;

/// Delete sandboxes with all their processes and files
///
/// Works from every state, and does not ask. Prints the names of those that are gone.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Names, or `id:` and ids
    #[arg(required = true)]
    names: Vec<SandboxArg>,
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<ExitCode> {
    let client = daemon.connect().await?;
    each::of(&client, &args.names, async |sandbox| sandbox.delete().await).await
}
