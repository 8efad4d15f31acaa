//! `lodge image prune`: all images that nobody uses.

use anyhow::Result;
use lodge_client::PrunedImage;
use serde_json::json;

use crate::cli::Daemon;
use crate::{table, terminal, units};

/// Remove all images that no sandbox uses, with all their names
///
/// The default image goes, too, if no sandbox is made from it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Tell what would go, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<()> {
    let images = daemon.connect().await?.images();
    let pruned = match args.dry_run {
        true => images.prunable().await?,
        false => images.prune().await?,
    };
    if args.json {
        let images: Vec<_> = pruned.images.iter().map(json).collect();
        let object = json!({"images": images, "freed_bytes": pruned.freed_bytes});
        return terminal::data(&object.to_string());
    }
    if pruned.images.is_empty() {
        terminal::note("every image is in use");
        return Ok(());
    }
    let rows: Vec<_> = pruned.images.iter().map(row).collect();
    table::print(["NAMES", "DIGEST", "SIZE"], &rows)?;
    let (count, size) = (pruned.images.len(), units::size(pruned.freed_bytes));
    terminal::note(&match args.dry_run {
        true => format!("{count} image(s) would go, and {size} would be free again"),
        false => format!("removed {count} image(s); {size} are free again"),
    });
    Ok(())
}

fn json(image: &PrunedImage) -> serde_json::Value {
    json!({
        "digest": image.digest,
        "names": image.names,
        "size_bytes": image.size_bytes,
    })
}

/// The whole digest: what is gone cannot be looked up by its beginning.
fn row(image: &PrunedImage) -> [String; 3] {
    [
        image.names.join(","),
        image.digest.clone(),
        units::size(image.size_bytes),
    ]
}
