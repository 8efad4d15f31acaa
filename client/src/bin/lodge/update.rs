//! `lodge update`: limits, idle policy and labels of a sandbox that exists.

use anyhow::Result;
use lodge_client::{IdlePolicy, Limits};

use crate::cli::Daemon;
use crate::failure::Advice;
use crate::idle_args::IdleArgs;
use crate::limit_args::LimitArgs;
use crate::pair::pair;
use crate::sandbox_arg::SandboxArg;
use crate::{json, terminal};

/// Change limits, idle policy or labels of a sandbox
///
/// What is not mentioned stays as it is; either all of it changes, or nothing. Limits of a started sandbox change at once
/// where the kernel can, else at its next start: `lodge inspect` shows which. Never wakes it. Prints the sandbox's name.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Its name, or `id:` and its id
    name: SandboxArg,
    /// Label to set
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = pair)]
    label: Vec<(String, String)>,
    /// Label to remove; one that is not there is no error
    #[arg(long, value_name = "NAME")]
    remove_label: Vec<String>,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    idle: IdleArgs,
    /// Print the sandbox as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<()> {
    if args.is_empty() {
        return Err(Advice::new(
            "nothing to change",
            "say what, e.g. --memory 4GiB; `lodge update --help` has all",
        )
        .into());
    }
    let client = daemon.connect().await?;
    let mut update = client
        .at(args.name.reference())
        .update()
        .limits(args.limits.limits())
        .idle(args.idle.policy());
    for (name, value) in args.label {
        update = update.label(name, value);
    }
    for name in args.remove_label {
        update = update.remove_label(name);
    }
    if args.limits.allow_degraded {
        update = update.allow_degraded();
    }
    let sandbox = update.await?;
    terminal::data(&match args.json {
        true => json::sandbox(&sandbox).to_string(),
        false => sandbox.name,
    })
}

impl Args {
    fn is_empty(&self) -> bool {
        self.label.is_empty()
            && self.remove_label.is_empty()
            && self.limits.limits() == Limits::default()
            && self.idle.policy() == IdlePolicy::default()
    }
}
