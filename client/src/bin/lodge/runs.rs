//! `lodge runs`: the runs of a sandbox, live and ended.

use anyhow::Result;
use lodge_client::{RunFilter, RunInfo};
use serde_json::Value;

use crate::cli::Daemon;
use crate::sandbox_arg::InSandbox;
use crate::{json, table, terminal, units};

/// List the runs of a sandbox, the newest first
///
/// Ended ones are kept for a day, at most 1000; their output may go earlier, to make room. Never wakes the sandbox. END is
/// how a run ended, with its exit code.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    sandbox: InSandbox,
    /// Only those whose command still runs
    #[arg(long)]
    live: bool,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<()> {
    let sandbox = daemon.connect().await?.at(args.sandbox.sandbox.reference());
    let filter = match args.live {
        true => RunFilter::Live,
        false => RunFilter::All,
    };
    let runs = sandbox.list_runs(filter).await?;
    if args.json {
        let array: Value = runs.iter().map(json::run).collect();
        return terminal::data(&array.to_string());
    }
    let rows: Vec<_> = runs.iter().map(row).collect();
    table::print(["RUN", "STARTED", "END", "OUTPUT", "COMMAND"], &rows)
}

fn row(run: &RunInfo) -> [String; 5] {
    [
        run.run_id.clone(),
        units::time(run.started_at),
        match &run.outcome {
            Some(end) => format!("{} {}", end.end_reason, end.exit_code),
            None => "live".to_owned(),
        },
        units::size(run.stdout.total_bytes + run.stderr.total_bytes),
        run.command.clone(),
    ]
}
