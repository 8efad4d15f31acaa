//! `lodge kill`: the processes of a run.

use anyhow::Result;

use crate::cli::Daemon;
use crate::sandbox_arg::InSandbox;
use crate::terminal;

/// End all processes of a run
///
/// SIGTERM, two seconds, then SIGKILL. Also ends what an ended run left running. Prints how many were ended.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    sandbox: InSandbox,
    /// The run's id, as `lodge ps` shows it
    run: String,
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<()> {
    let client = daemon.connect().await?;
    let ended = client
        .at(args.sandbox.sandbox.reference())
        .kill(args.run)
        .await?;
    terminal::data(&ended.to_string())
}
