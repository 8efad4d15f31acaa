//! `lodge pause`: no CPU for sandboxes until they are needed.

use std::process::ExitCode;

use anyhow::Result;

use crate::cli::Daemon;
use crate::{each, terminal, units};

/// Freeze all processes of sandboxes until they are needed
///
/// They get no CPU, and the timeouts of their runs stand still. The next run, or `lodge resume`, goes on where they
/// were. A sandbox that is stopped cannot be paused. Prints the names of those that are frozen.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    sandboxes: each::Sandboxes,
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<ExitCode> {
    each::of(daemon, &args.sandboxes, async |sandbox| {
        let paused = sandbox.pause().await?;
        // Only for a person: `lodge stats --json` has what is left.
        if let Some(bytes) = paused.reclaimed_bytes
            && terminal::is_watched()
        {
            let (name, given_back) = (&paused.info.name, units::size(bytes));
            terminal::note(&format!("{name} gave {given_back} of memory back"));
        }
        Ok(())
    })
    .await
}
