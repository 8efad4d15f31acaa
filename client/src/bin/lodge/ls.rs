//! `lodge ls`: all sandboxes.

use anyhow::Result;
use lodge_client::SandboxInfo;
use serde_json::Value;

use crate::cli::Daemon;
use crate::{json, table, terminal, units};

/// List sandboxes
///
/// Never wakes one.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<()> {
    let sandboxes = daemon.connect().await?.list().await?;
    if args.json {
        let array: Value = sandboxes.iter().map(json::sandbox).collect();
        return terminal::data(&array.to_string());
    }
    let rows: Vec<_> = sandboxes.iter().map(row).collect();
    table::print(["NAME", "STATE", "IMAGE", "RUNS", "CREATED", "ID"], &rows)
}

fn row(sandbox: &SandboxInfo) -> [String; 6] {
    let state = match sandbox.state_reason.as_str() {
        "" => sandbox.state.to_string(),
        reason => format!("{} ({reason})", sandbox.state),
    };
    [
        sandbox.name.clone(),
        state,
        sandbox.image.clone(),
        sandbox.live_runs.to_string(),
        units::time(sandbox.created_at),
        sandbox.id.clone(),
    ]
}
