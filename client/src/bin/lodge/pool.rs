//! `lodge pool …`: the file in which sandboxes and images are stored, with a driver that has one.

mod grow; // `lodge pool grow`

use anyhow::Result;
use clap::Subcommand;

use crate::cli::Daemon;

/// Look after the pool in which sandboxes and images are stored
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Grow(grow::Args),
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<()> {
    match args.command {
        Command::Grow(args) => grow::execute(args, daemon).await,
    }
}
