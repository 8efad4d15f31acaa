//! A call for each of several sandboxes: one that fails does not keep the others from it.

use std::process::ExitCode;

use anyhow::{Error, Result};
use lodge_client::{Client, Sandbox};

use crate::failure::{self, LODGE_FAILED};
use crate::sandbox_arg::SandboxArg;
use crate::terminal;

/// Prints the name of each sandbox for which the call worked, and tells the other failures.
pub(crate) async fn of<F>(client: &Client, names: &[SandboxArg], call: F) -> Result<ExitCode>
where
    F: AsyncFn(Sandbox) -> Result<(), lodge_client::Error>,
{
    let mut code = ExitCode::SUCCESS;
    for name in names {
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
