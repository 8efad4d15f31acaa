//! `lodge create`: get-or-create a sandbox, with what it is made of.

use anyhow::Result;
use lodge_client::Limits;

use crate::cli::Daemon;
use crate::{json, terminal, units};

/// Create a sandbox, or get the one of that name
///
/// Prints the sandbox's id. Everything but the image is used only if it has to be created.
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
    #[command(flatten)]
    limits: LimitArgs,
    /// Take a limit that the host cannot enforce as degraded, instead of failing
    #[arg(long)]
    allow_degraded: bool,
    /// Print the sandbox as JSON, with `created`
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Limits [default: the server's]")]
struct LimitArgs {
    /// Memory of all runs together, e.g. 2GiB
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    memory: Option<i64>,
    /// CPUs, e.g. 1.5
    #[arg(long, value_name = "N", value_parser = units::parse_cpus)]
    cpus: Option<i64>,
    /// Processes and threads of all runs together
    #[arg(long, value_name = "N")]
    pids: Option<i64>,
    /// Disk space of its files; nothing enforces it yet, so it needs --allow-degraded
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    disk: Option<i64>,
    /// Open files per process
    #[arg(long, value_name = "N")]
    open_files: Option<i64>,
    /// Size of /dev/shm
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    shm: Option<i64>,
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<()> {
    let mut acquire = daemon
        .connect()
        .await?
        .sandbox(args.name)
        .limits(args.limits.into());
    if let Some(image) = args.image {
        acquire = acquire.image(image);
    }
    for (name, value) in args.env {
        acquire = acquire.env(name, value);
    }
    for (name, value) in args.label {
        acquire = acquire.label(name, value);
    }
    if args.allow_degraded {
        acquire = acquire.allow_degraded();
    }
    let acquired = acquire.acquire().await?;
    if args.json {
        let mut object = json::sandbox(&acquired.info);
        object["created"] = acquired.created.into();
        return terminal::data(&object.to_string());
    }
    if !acquired.created {
        terminal::note(&format!("sandbox {} exists already", acquired.info.name));
    }
    terminal::data(&acquired.info.id)
}

impl From<LimitArgs> for Limits {
    fn from(args: LimitArgs) -> Self {
        Self {
            memory_bytes: args.memory,
            pids: args.pids,
            cpu_millis: args.cpus,
            disk_bytes: args.disk,
            open_files: args.open_files,
            shm_bytes: args.shm,
        }
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write NAME=VALUE".to_owned()),
    }
}
