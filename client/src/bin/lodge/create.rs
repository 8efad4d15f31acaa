//! `lodge create`: get-or-create a sandbox, with what it is made of.

use anyhow::Result;

use crate::cli::Daemon;
use crate::idle_args::IdleArgs;
use crate::limit_args::LimitArgs;
use crate::pair::pair;
use crate::{json, terminal};

/// Create a sandbox, or get the one of that name
///
/// Prints the sandbox's id. Everything but the image is used only if it has to be created; `lodge update` changes a
/// sandbox that exists.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name: letters, digits, `.`, `_`, `-`
    name: String,
    /// Image name or digest [default: the server's]
    #[arg(long)]
    image: Option<String>,
    /// Variable that every run gets; it is stored and listed, so never a secret
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
    /// Label
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = pair)]
    label: Vec<(String, String)>,
    /// Set-user-id programs gain nothing inside: sudo does not work, and root is had by `--user root` alone
    #[arg(long)]
    no_new_privileges: bool,
    /// Its files cannot be changed from inside; /tmp is memory then, of the size of /dev/shm
    #[arg(long)]
    read_only_root: bool,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    idle: IdleArgs,
    /// Print the sandbox as JSON, with `created`
    #[arg(long)]
    json: bool,
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<()> {
    let mut acquire = daemon
        .connect()
        .await?
        .sandbox(args.name)
        .limits(args.limits.limits())
        .idle(args.idle.policy());
    if let Some(image) = args.image {
        acquire = acquire.image(image);
    }
    for (name, value) in args.env {
        acquire = acquire.env(name, value);
    }
    for (name, value) in args.label {
        acquire = acquire.label(name, value);
    }
    if args.no_new_privileges {
        acquire = acquire.no_new_privileges(true);
    }
    if args.read_only_root {
        acquire = acquire.read_only_root(true);
    }
    if args.limits.allow_degraded {
        acquire = acquire.allow_degraded();
    }
    let acquired = acquire.acquire().await?;
    if args.json {
        let mut object = json::sandbox(&acquired.info);
        object["created"] = acquired.created.into();
        return terminal::data(&object.to_string());
    }
    if !acquired.created {
        let name = &acquired.info.name;
        terminal::note(&format!(
            "sandbox {name} exists already and is left as it is"
        ));
        terminal::hint(&format!(
            "`lodge update {name}` changes its limits, idle policy and labels"
        ));
    }
    terminal::data(&acquired.info.id)
}
