//! `lodge watch`: changes of sandboxes as they happen.

use std::collections::HashMap;
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
    let mut shown = Shown::default();
    while let Some(event) = events.next().await {
        let event = event?;
        if args.json {
            terminal::data(&json::sandbox_event(&event).to_string())?;
        } else if let Some(line) = shown.line(&event) {
            terminal::data(&line)?;
        }
    }
    Ok(())
}

/// What was shown of each sandbox last, by its id.
#[derive(Default)]
struct Shown(HashMap<String, String>);

impl Shown {
    /// Nothing where a person has nothing from it: as where what has changed is not shown.
    fn line(&mut self, event: &SandboxEvent) -> Option<String> {
        match event {
            SandboxEvent::Changed(sandbox) => {
                let doing = doing(sandbox);
                let last = self.0.insert(sandbox.id.clone(), doing.clone());
                (last.as_ref() != Some(&doing)).then(|| line(&sandbox.name, &doing))
            }
            SandboxEvent::Deleted { id, name } => {
                self.0.remove(id);
                Some(line(name, "deleted"))
            }
            _ => None,
        }
    }
}

fn line(name: &str, what: &str) -> String {
    let now = units::time(Some(SystemTime::now()));
    let (name, what) = (terminal::escape(name), terminal::escape(what));
    format!("{now}  {name}  {what}")
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
