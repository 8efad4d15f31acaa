//! `lodge ps`: the processes of a sandbox.

use anyhow::Result;
use lodge_client::{Process, SandboxInfo, SandboxState};
use serde_json::Value;

use crate::cli::Daemon;
use crate::failure::Advice;
use crate::sandbox_arg::InSandbox;
use crate::{json, table, terminal, units};

/// List the processes of a sandbox
///
/// Never wakes it. LIVE is `no` for processes whose run has ended.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    sandbox: InSandbox,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<()> {
    let client = daemon.connect().await?;
    let sandbox = client.at(args.sandbox.sandbox.reference());
    let processes = sandbox.ps().await?;
    if processes.is_empty() {
        say_why(&sandbox.info().await?)?;
    }
    if args.json {
        let array: Value = processes.iter().map(json::process).collect();
        return terminal::data(&array.to_string());
    }
    let rows: Vec<_> = processes.iter().map(row).collect();
    table::print(
        ["PID", "UID", "STATE", "RSS", "RUN", "LIVE", "COMMAND"],
        &rows,
    )
}

/// Why there are no processes, where that is not simply so. Of a damaged sandbox it is not known that there are none.
fn say_why(sandbox: &SandboxInfo) -> Result<()> {
    let name = &sandbox.name;
    match sandbox.state {
        SandboxState::Damaged => Err(Advice::new(
            format!(
                "sandbox {name} is damaged ({}): its processes cannot be listed",
                sandbox.state_reason
            ),
            format!("restart lodged, which tries again; or `lodge stop {name}`, which ends them"),
        )
        .into()),
        SandboxState::Stopped => {
            terminal::note(&format!("sandbox {name} is stopped: it has no processes"));
            Ok(())
        }
        _ => Ok(()),
    }
}

fn row(process: &Process) -> [String; 7] {
    [
        process.pid.to_string(),
        process.uid.to_string(),
        process.state.clone(),
        units::size(process.rss_bytes),
        process.run_id.clone(),
        if process.run_live { "yes" } else { "no" }.to_owned(),
        process.command.clone(),
    ]
}
