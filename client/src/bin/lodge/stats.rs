//! `lodge stats`: what sandboxes use.

use std::fmt;
use std::process::ExitCode;

use anyhow::{Error, Result};
use lodge_client::{Client, SandboxRef, SandboxStats};
use serde_json::Value;

use crate::cli::Daemon;
use crate::failure::{self, LODGE_FAILED};
use crate::sandbox_arg::SandboxArg;
use crate::{json, table, terminal, units};

/// Show what sandboxes use: memory, CPU time, processes, disk, logs
///
/// The figures are the kernel's own; `-` where there is none, as for a sandbox that is stopped. MEMORY has the cache of
/// files that the runs read and wrote, PEAK, CPU TIME and OOM KILLS count since the sandbox was started, DISK and FILES are
/// its own files, those of the image excluded, KEPT is ended runs that are still known. Never wakes a sandbox.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Names, or `id:` and ids [default: all]
    names: Vec<SandboxArg>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

const HEADER: [&str; 13] = [
    "NAME",
    "STATE",
    "MEMORY",
    "PEAK",
    "LIMIT",
    "CPU TIME",
    "PIDS",
    "OOM KILLS",
    "DISK",
    "FILES",
    "RUNS",
    "KEPT",
    "LOGS",
];

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<ExitCode> {
    let client = daemon.connect().await?;
    let mut code = ExitCode::SUCCESS;
    let mut all = Vec::new();
    for (name, sandbox) in wanted(&client, &args.names).await? {
        match client.at(sandbox).stats().await {
            Ok(stats) => all.push((name, stats)),
            // One of all that went between the two calls.
            Err(error) if args.names.is_empty() && error.is_not_found() => {}
            // What the daemon says names the sandbox.
            Err(error) => {
                failure::tell(&Error::new(error));
                code = ExitCode::from(LODGE_FAILED);
            }
        }
    }
    if args.json {
        let array: Value = all.iter().map(|(name, s)| json::stats(name, s)).collect();
        terminal::data(&array.to_string())?;
    } else {
        let rows: Vec<_> = all.iter().map(|(name, stats)| row(name, stats)).collect();
        table::print(HEADER, &rows)?;
    }
    Ok(code)
}

/// Sandboxes, as they are to be shown and as they are to be named.
async fn wanted(client: &Client, names: &[SandboxArg]) -> Result<Vec<(String, SandboxRef)>> {
    if names.is_empty() {
        let all = client.list().await?.into_iter();
        return Ok(all.map(|s| (s.name, SandboxRef::Id(s.id))).collect());
    }
    let named = names.iter();
    Ok(named
        .map(|name| (name.as_str().to_owned(), name.reference()))
        .collect())
}

fn row(name: &str, stats: &SandboxStats) -> [String; 13] {
    let bytes = |figure: Option<u64>| figure.map_or_else(unknown, units::size);
    let count = |figure: Option<u64>| figure.map_or_else(unknown, |n| n.to_string());
    let disk = of_limit(
        stats.disk_bytes.map(units::size),
        stats.disk_limit_bytes.map(units::size),
    );
    [
        name.to_owned(),
        stats.state.to_string(),
        bytes(stats.memory_bytes),
        bytes(stats.memory_peak_bytes),
        bytes(stats.memory_limit_bytes),
        stats.cpu_time.map_or_else(unknown, units::duration),
        of_limit(stats.pids, stats.pids_limit),
        count(stats.oom_kills),
        disk,
        of_limit(stats.inodes, stats.inodes_limit),
        stats.live_runs.to_string(),
        stats.kept_runs.to_string(),
        units::size(stats.log_bytes),
    ]
}

fn of_limit<T: fmt::Display>(used: Option<T>, limit: Option<T>) -> String {
    match (used, limit) {
        (Some(used), Some(limit)) => format!("{used} of {limit}"),
        (Some(used), None) => used.to_string(),
        (None, _) => unknown(),
    }
}

fn unknown() -> String {
    "-".to_owned()
}
