//! `lodge ls`: sandboxes.

use anyhow::Result;
use lodge_client::{SandboxInfo, SandboxState};
use serde_json::Value;

use crate::cli::Daemon;
use crate::pair::pair;
use crate::{json, table, terminal, units};

/// List sandboxes
///
/// Never wakes one.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only those with this label; several must all be there
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = pair)]
    label: Vec<(String, String)>,
    /// Only those in this state; several mean any of them
    #[arg(long)]
    state: Vec<State>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum State {
    Creating,
    Running,
    Frozen,
    Stopped,
    Damaged,
    Deleting,
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<()> {
    let mut list = daemon.connect().await?.list();
    for (name, value) in args.label {
        list = list.label(name, value);
    }
    for state in args.state {
        list = list.state(state.into());
    }
    let sandboxes = list.await?;
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

impl From<State> for SandboxState {
    fn from(state: State) -> Self {
        match state {
            State::Creating => Self::Creating,
            State::Running => Self::Running,
            State::Frozen => Self::Frozen,
            State::Stopped => Self::Stopped,
            State::Damaged => Self::Damaged,
            State::Deleting => Self::Deleting,
        }
    }
}
