//! The soak: a bounded mixed load on a daemon of its own for as long as asked, with kills of the daemon in it, and what
//! the host is used for meanwhile.
//!
//! The load comes in rounds. After each one everything is deleted, and what is in use then is measured: it should be
//! the same every time, so that any slope is a leak. Prints a table, or JSON, and fails if an operation had a wrong
//! answer, a slope is above its bound, or something is left. Leaves nothing behind, also on Ctrl-C. Does not measure
//! speed: `make bench` does.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command's output is its purpose"
)]

mod args; // which load, how long, which seed
mod errand; // what a run is good for: streams, secrets, timeouts, logs
mod load; // what is to be done in a round
mod outages; // when the daemon was killed
mod random; // the same load again from the same seed
mod report; // the table and the JSON
mod rounds; // load, rest, measure
mod slope; // slopes and their bounds
mod worker; // one caller with sandboxes of its own

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::args::Args;
use crate::rounds::Soak;

fn main() -> Result<ExitCode> {
    let args = Args::parse(std::env::args().skip(1))?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        // Whichever comes first, the daemon is dropped on the way out, and cleans up.
        tokio::select! {
            done = soak(&args) => done,
            signal = interrupted() => bail!("ended by {}", signal?),
        }
    })
}

async fn soak(args: &Args) -> Result<ExitCode> {
    eprintln!("soak: seed {}", args.seed);
    let mut soak = Soak::start(args).await?;
    // What was measured until a failure tells where to look.
    let outcome = soak.run().await;
    let fine = report::print(&soak.record, &args.format);
    outcome?;
    Ok(if fine {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn interrupted() -> Result<&'static str> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        done = tokio::signal::ctrl_c() => done.map(|()| "SIGINT").map_err(Into::into),
        _ = terminate.recv() => Ok("SIGTERM"),
    }
}
