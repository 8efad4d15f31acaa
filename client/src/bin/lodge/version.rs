//! `lodge version`: of this command and of the daemon.

use anyhow::Result;
use serde_json::json;

use crate::cli::Daemon;
use crate::{json, terminal};

/// Show the versions of this command and of the daemon
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<()> {
    let client = env!("CARGO_PKG_VERSION");
    if !args.json {
        // Before the daemon is asked: it is true also where none answers.
        terminal::data(&format!("lodge {client}"))?;
    }
    let node = daemon.connect().await?.info().await?;
    if args.json {
        return terminal::data(
            &json!({ "client_version": client, "daemon": json::node(&node) }).to_string(),
        );
    }
    terminal::data(&format!(
        "lodged {} (API {}, storage {}, cgroup {})",
        node.daemon_version, node.api_version, node.storage_driver, node.cgroup_mode
    ))
}
