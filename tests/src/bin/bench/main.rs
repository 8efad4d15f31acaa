//! The bench: Lodge against the same work done without it, side by side in one go.
//!
//! Prints a table and writes `target/bench/results.json`. Starts a daemon of its own and leaves nothing behind, also
//! on failure and on Ctrl-C. Does not install the peers (docker, runc): `make bench-peers` does, and a row whose peer
//! is missing says so.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command's output is its purpose"
)]

mod args; // which rows, how many samples
mod docker; // Docker's HTTP API
mod memory; // proportional set sizes
mod report; // the table and the file
mod row; // what a row is, and how its two sides are measured in turn
mod rows; // the rows, one file each
mod runc; // runc's command line
mod spawner; // posix_spawn + wait, in a process of its own
mod stats; // percentiles
mod world; // the daemon under test and the root file system that all sides share

use anyhow::{Result, bail};

use crate::args::Args;
use crate::row::Outcome;
use crate::world::World;

fn main() -> Result<()> {
    if let Some(job) = spawner::Job::from_args(std::env::args().skip(1))? {
        return spawner::serve(&job);
    }
    let args = Args::parse(std::env::args().skip(1))?;
    // One thread: what is measured is a caller's wait, not the bench's own scheduling.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        // Whichever comes first, every guard below is dropped on the way out, and each cleans up.
        tokio::select! {
            done = bench(&args) => done,
            signal = interrupted() => bail!("ended by {}", signal?),
        }
    })
}

async fn bench(args: &Args) -> Result<()> {
    let mut world = World::start().await?;
    let mut lines = Vec::new();
    for row in rows::ALL.iter().filter(|row| args.wants(row.name)) {
        eprintln!("bench: {} …", row.name);
        let outcome = (row.measure)(&mut world, args.samples)
            .await
            .unwrap_or_else(|error| Outcome::NotMeasured(format!("{error:#}")));
        lines.push(report::Line::new(row, outcome));
        // After each row: an interrupted bench keeps what it has.
        report::write(&lines)?;
    }
    print!("{}", report::table(&lines));
    Ok(())
}

async fn interrupted() -> Result<&'static str> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        done = tokio::signal::ctrl_c() => done.map(|()| "SIGINT").map_err(Into::into),
        _ = terminate.recv() => Ok("SIGTERM"),
    }
}
