//! `lodge inspect`: all that is known of one sandbox.

use anyhow::Result;
use lodge_client::{IdlePolicy, LimitStatus, SandboxInfo};

use crate::cli::Daemon;
use crate::sandbox_arg::SandboxArg;
use crate::{json, table, terminal, units};

/// Show all that is known of a sandbox
///
/// Never wakes it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Its name, or `id:` and its id
    name: SandboxArg,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<()> {
    let sandbox = daemon.connect().await?.get(args.name.reference()).await?;
    if args.json {
        return terminal::data(&json::sandbox(&sandbox).to_string());
    }
    print_facts(&sandbox)?;
    terminal::data("")?;
    let limits: Vec<_> = sandbox.limits.iter().map(row).collect();
    table::print(
        ["LIMIT", "REQUESTED", "EFFECTIVE", "ENFORCEMENT", "REASON"],
        &limits,
    )
}

fn print_facts(sandbox: &SandboxInfo) -> Result<()> {
    let facts = [
        ("id", sandbox.id.clone()),
        ("name", sandbox.name.clone()),
        ("tenant", sandbox.tenant.clone()),
        ("state", sandbox.state.to_string()),
        ("reason", sandbox.state_reason.clone()),
        ("image", sandbox.image.clone()),
        ("digest", sandbox.image_digest.clone()),
        ("created", units::time(sandbox.created_at)),
        ("hostname", sandbox.hostname.clone()),
        ("live runs", sandbox.live_runs.to_string()),
        ("streams", sandbox.open_streams.to_string()),
        (
            "idle for",
            sandbox.idle_for.map(units::duration).unwrap_or_default(),
        ),
        ("idle", idle(&sandbox.idle)),
        ("confined", confined(sandbox)),
    ];
    for (name, value) in facts.iter().filter(|(_, value)| !value.is_empty()) {
        print_fact(name, value)?;
    }
    for (name, value) in &sandbox.labels {
        print_fact("label", &format!("{name}={value}"))?;
    }
    for (name, value) in &sandbox.env {
        print_fact("env", &format!("{name}={value}"))?;
    }
    Ok(())
}

/// What it has taken away beyond every other.
fn confined(sandbox: &SandboxInfo) -> String {
    let options = [
        (sandbox.no_new_privileges, "no new privileges"),
        (sandbox.read_only_root, "read-only root"),
    ];
    let given = options.iter().filter(|(on, _)| *on).map(|(_, name)| *name);
    given.collect::<Vec<_>>().join(", ")
}

/// `frozen after 10m, stopped after 3days`.
fn idle(policy: &IdlePolicy) -> String {
    let times = [
        ("frozen", policy.freeze_after),
        ("stopped", policy.stop_after),
        ("deleted", policy.delete_after),
    ];
    let planned = times.into_iter().filter_map(|(what, after)| {
        let after = after.filter(|after| !after.is_zero())?;
        Some(format!("{what} after {}", units::exact(after)))
    });
    planned.collect::<Vec<_>>().join(", ")
}

fn print_fact(name: &str, value: &str) -> Result<()> {
    terminal::data(&format!("{name:<10} {}", terminal::escape(value)))
}

fn row(limit: &LimitStatus) -> [String; 5] {
    let figure = |value: Option<i64>| value.map_or_else(|| "-".to_owned(), |v| v.to_string());
    [
        limit.name.clone(),
        figure(limit.requested),
        figure(limit.effective),
        limit.enforcement.to_string(),
        limit.reason.clone(),
    ]
}
