//! `lodge image …`: what new sandboxes start as.

mod build; // `lodge image build`
mod import; // `lodge image import`
mod ls; // `lodge image ls`
mod prune; // `lodge image prune`
mod rm; // `lodge image rm`

mod archive; // where an archive's bytes come from, and whether they all came
mod pack; // a directory as a tar archive
mod progress; // an import, told as it goes
mod recipe; // `recipe.toml`

use anyhow::Result;
use clap::Subcommand;

use crate::cli::Daemon;

/// Import, build, list, remove and prune images
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Import(import::Args),
    Build(build::Args),
    Ls(ls::Args),
    Rm(rm::Args),
    Prune(prune::Args),
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<()> {
    match args.command {
        Command::Import(args) => import::execute(args, daemon).await,
        Command::Build(args) => build::execute(args, daemon).await,
        Command::Ls(args) => ls::execute(args, daemon).await,
        Command::Rm(args) => rm::execute(args, daemon).await,
        Command::Prune(args) => prune::execute(args, daemon).await,
    }
}
