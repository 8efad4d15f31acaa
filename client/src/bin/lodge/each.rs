//! A call for each of several sandboxes: one that fails does not keep the others from it.

use std::process::ExitCode;

use anyhow::{Error, Result};
use lodge_client::Sandbox;

use crate::cli::Daemon;
use crate::failure::{self, LODGE_FAILED};
use crate::sandbox_arg::SandboxArg;
use crate::terminal;

/// The sandboxes that a subcommand takes.
#[derive(Debug, clap::Args)]
pub(crate) struct Sandboxes {
    /// Names, or `id:` and ids
    #[arg(required = true)]
    names: Vec<SandboxArg>,
}

/// Prints the name of each sandbox for which the call worked, and tells the other failures.
pub(crate) async fn of<F>(daemon: &Daemon, sandboxes: &Sandboxes, call: F) -> Result<ExitCode>
where
    F: AsyncFn(Sandbox) -> Result<(), lodge_client::Error>,
{
    let client = daemon.connect().await?;
    let mut code = ExitCode::SUCCESS;
    for name in &sandboxes.names {
        match call(client.at(name.reference())).await {
            Ok(()) => terminal::data(name.as_str())?,
            // What the daemon says names the sandbox.
            Err(error) => {
                failure::tell(&Error::new(error));
                code = ExitCode::from(LODGE_FAILED);
            }
        }
    }
    Ok(code)
}
