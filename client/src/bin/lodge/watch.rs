//! `lodge watch`: changes of sandboxes as they happen.

use std::time::SystemTime;

use anyhow::Result;
use lodge_client::{SandboxEvent, SandboxInfo};

use crate::cli::Daemon;
use crate::pair::pair;
use crate::sandbox_arg::SandboxArg;
use crate::{json, terminal, units};

/// Print sandboxes as they are now, then each change, until it is interrupted
///
/// One line for each: when it was told, the name, and what the sandbox is doing. A sandbox that changes faster than this
/// is read is shown as it is last. Goes on when the daemon is restarted. Never wakes a sandbox. With a name it ends when
/// that sandbox is gone.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only this one: its name, or `id:` and its id
    name: Option<SandboxArg>,
    /// Only those with this label; several must all be there
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = pair, conflicts_with = "name")]
    label: Vec<(String, String)>,
    /// Print a JSON object a line: `event` is `changed` (with `sandbox`), `deleted` (with `id`), or `synced` once all
    /// that there were are told
    #[arg(long)]
    json: bool,
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<()> {
    let mut watch = daemon.connect().await?.watch();
    if let Some(name) = &args.name {
        watch = watch.sandbox(name.reference());
    }
    for (name, value) in args.label {
        watch = watch.label(name, value);
    }
    let mut events = watch.await?;
    while let Some(event) = events.next().await {
        let event = event?;
        if args.json {
            terminal::data(&json::sandbox_event(&event).to_string())?;
        } else if let Some(line) = line(&event) {
            terminal::data(&line)?;
        }
    }
    Ok(())
}

/// Nothing where a person has nothing from it.
fn line(event: &SandboxEvent) -> Option<String> {
    let (name, what) = match event {
        SandboxEvent::Changed(sandbox) => (&sandbox.name, doing(sandbox)),
        SandboxEvent::Deleted { name, .. } => (name, "deleted".to_owned()),
        _ => return None,
    };
    let now = units::time(Some(SystemTime::now()));
    Some(format!(
        "{now}  {}  {}",
        terminal::escape(name),
        terminal::escape(&what)
    ))
}

fn doing(sandbox: &SandboxInfo) -> String {
    let state = match sandbox.state_reason.as_str() {
        "" => sandbox.state.to_string(),
        reason => format!("{} ({reason})", sandbox.state),
    };
    match sandbox.live_runs {
        0 => state,
        1 => format!("{state}, 1 run"),
        runs => format!("{state}, {runs} runs"),
    }
}
