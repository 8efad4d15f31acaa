//! `lodge image import`: an archive or a directory becomes an image.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

use super::{pack, progress};
use crate::cli::Daemon;

/// Where the archive is standard input.
const STDIN: &str = "-";

/// Import an image from an archive or a directory
///
/// SOURCE is a root file system as tar (plain, gzip or zstd), an archive of `docker save` or OCI, a directory with a
/// root file system, or - for an archive on standard input. A directory is packed with its numeric owners; extended
/// attributes, devices and sockets are left out. Prints the image's digest.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Archive, directory, or - for standard input
    source: PathBuf,
    /// Name to give it; one in use moves to the new image
    #[arg(long)]
    name: String,
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<()> {
    let path = args.source;
    let images = daemon.connect().await?.images();
    if path.as_os_str() == STDIN {
        return progress::import(&images, &args.name, tokio::io::stdin()).await;
    }
    let file = tokio::fs::File::open(&path).await;
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    let meta = file.metadata().await;
    match meta
        .with_context(|| format!("cannot look at {}", path.display()))?
        .is_dir()
    {
        true => progress::import(&images, &args.name, pack::pack(path)).await,
        false => progress::import(&images, &args.name, file).await,
    }
}
