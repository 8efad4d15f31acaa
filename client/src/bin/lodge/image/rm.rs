//! `lodge image rm`: names, and images with their last name.

use anyhow::Result;

use crate::cli::Daemon;
use crate::terminal;

/// Remove a name, and the image itself with its last name
///
/// An image that a sandbox uses is kept, and that is an error.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A name or a digest
    image: String,
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<()> {
    let removed = daemon.connect().await?.images().remove(&args.image).await?;
    terminal::note(match removed {
        true => "removed the image",
        false => "removed the name; the image has others",
    });
    Ok(())
}
