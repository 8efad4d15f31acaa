//! `lodge pool grow`: a larger pool.

use anyhow::Result;

use crate::cli::Daemon;
use crate::{json, terminal, units};

/// Give the pool a larger size, at once
///
/// It takes space of the host only as it fills. A pool never gets smaller; what it does not need it gives back to the
/// host by itself.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The size that it is to have, e.g. 200GiB
    #[arg(value_name = "SIZE", value_parser = units::parse_size)]
    size: i64,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<()> {
    let bytes = u64::try_from(args.size).unwrap_or(0);
    let host = daemon.connect().await?.grow_pool(bytes).await?;
    if args.json {
        return terminal::data(&json::host_disk(&host).to_string());
    }
    let (size, used) = (units::size(host.size_bytes), units::size(host.used_bytes));
    terminal::data(&format!("{size}, {used} of it used"))
}
