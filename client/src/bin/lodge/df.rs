//! `lodge df`: what is stored on the daemon's host, and how much of it each sandbox has.

use anyhow::Result;
use lodge_client::{NodeDisk, SandboxDisk};

use crate::cli::Daemon;
use crate::{json, table, terminal, units};

/// Show what is stored on the daemon's host, and how much of it each sandbox has
///
/// USED is what a sandbox's own files take on disk, those of its image excluded; `-` where the storage driver has no such
/// figure. Never wakes a sandbox.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<()> {
    let disk = daemon.connect().await?.disk().await?;
    if args.json {
        return terminal::data(&json::node_disk(&disk).to_string());
    }
    print_facts(&disk)?;
    terminal::data("")?;
    let rows: Vec<_> = disk.sandboxes.iter().map(row).collect();
    table::print(
        ["NAME", "STATE", "USED", "LIMIT", "FILES", "MAX FILES"],
        &rows,
    )
}

fn print_facts(disk: &NodeDisk) -> Result<()> {
    let host = &disk.host;
    let facts = [
        ("driver", host.driver.clone()),
        ("path", host.path.clone()),
        ("size", units::size(host.size_bytes)),
        ("used", units::size(host.used_bytes)),
        ("host free", units::size(host.host_free_bytes)),
        ("reserve", units::size(host.reserve_bytes)),
        ("images", units::size(disk.images_bytes)),
        ("run logs", units::size(disk.logs_bytes)),
        ("removing", removing(host.being_removed)),
    ];
    for (name, value) in facts.iter().filter(|(_, value)| !value.is_empty()) {
        terminal::data(&format!("{name:<10} {}", terminal::escape(value)))?;
    }
    for ability in disk.abilities.iter().filter(|ability| !ability.supported) {
        let text = format!("{}: {}", ability.name, ability.reason);
        terminal::data(&format!("{:<10} {}", "cannot", terminal::escape(&text)))?;
    }
    Ok(())
}

fn removing(sandboxes: u64) -> String {
    match sandboxes {
        0 => String::new(),
        1 => "1 deleted sandbox".to_owned(),
        more => format!("{more} deleted sandboxes"),
    }
}

fn row(sandbox: &SandboxDisk) -> [String; 6] {
    let bytes = |figure: Option<u64>| figure.map_or_else(unknown, units::size);
    let count = |figure: Option<u64>| figure.map_or_else(unknown, |n| n.to_string());
    [
        sandbox.name.clone(),
        sandbox.state.to_string(),
        bytes(sandbox.used_bytes),
        bytes(sandbox.limit_bytes),
        count(sandbox.inodes),
        count(sandbox.limit_inodes),
    ]
}

fn unknown() -> String {
    "-".to_owned()
}
