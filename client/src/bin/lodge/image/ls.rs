//! `lodge image ls`: all images.

use anyhow::Result;
use lodge_client::Image;
use serde_json::Value;

use crate::cli::Daemon;
use crate::{json, table, terminal, units};

/// Characters of a digest that tell images apart well enough for people.
const SHORT_DIGEST: usize = "sha256:".len() + 12;

/// List images
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<()> {
    let images = daemon.connect().await?.images().list().await?;
    if args.json {
        let array: Value = images.iter().map(json::image).collect();
        return terminal::data(&array.to_string());
    }
    let rows: Vec<_> = images.iter().map(row).collect();
    table::print(["NAMES", "DIGEST", "SIZE", "SANDBOXES", "IMPORTED"], &rows)
}

fn row(image: &Image) -> [String; 5] {
    [
        image.names.join(","),
        image.digest.chars().take(SHORT_DIGEST).collect(),
        units::size(image.size_bytes),
        image.sandboxes.to_string(),
        units::time(image.imported_at),
    ]
}
