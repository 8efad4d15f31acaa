//! 1 GiB through a streaming run against the same command into `cat >/dev/null` on the host: bytes that cost their maker
//! nothing, and lines of text.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lodge_client::{Event, Sandbox};

use crate::row::{Compared, Goal, Outcome, Row, in_turn};
use crate::world::World;

/// Writes 1 GiB in pieces of a pipe's capacity, so that the command itself is not what is slow.
const ZEROS: &str = "dd if=/dev/zero bs=64k count=16384 status=none";
/// Writes 1 GiB of lines: what a flood of output looks like that a program makes.
const LINES: &str = "yes | head -c 1073741824";
/// What it writes.
const BYTES: u64 = 1 << 30;
/// Longer than any host takes for 1 GiB.
const TIMEOUT: Duration = Duration::from_secs(300);

pub(crate) const ROW: Row = Row {
    name: "stream_1gib_vs_pipe",
    unit: "MiB/s",
    baseline: "the same command | cat >/dev/null",
    compared: Compared::P50,
    goal: Goal::Floor(0.5),
    measure: |world, samples| Box::pin(measure(world, samples, ZEROS)),
};

pub(crate) const LINES_ROW: Row = Row {
    name: "stream_1gib_of_lines_vs_pipe",
    measure: |world, samples| Box::pin(measure(world, samples, LINES)),
    ..ROW
};

async fn measure(world: &mut World, samples: usize, command: &str) -> Result<Outcome> {
    let sandbox = &world.sandbox;
    in_turn(
        samples,
        Duration::ZERO,
        async || stream(sandbox, command).await,
        async || pipe(command),
    )
    .await
}

async fn stream(sandbox: &Sandbox, command: &str) -> Result<Vec<f64>> {
    let started = Instant::now();
    let mut events = sandbox.run(command).timeout(TIMEOUT).stream().await?;
    let mut received = 0u64;
    while let Some(event) = events.next().await {
        if let Event::Output { data, .. } = event? {
            received += data.len() as u64;
        }
    }
    ensure!(
        received == BYTES,
        "{received} of {BYTES} bytes came through the stream"
    );
    Ok(throughput(started))
}

fn pipe(command: &str) -> Result<Vec<f64>> {
    let started = Instant::now();
    let status = Command::new("/bin/sh")
        .args(["-c", &format!("{command} | cat >/dev/null")])
        .stdin(Stdio::null())
        .status()
        .context("start the host's pipe")?;
    ensure!(status.success(), "the host's pipe ended with {status}");
    Ok(throughput(started))
}

/// MiB per second since then.
fn throughput(started: Instant) -> Vec<f64> {
    vec![(BYTES >> 20) as f64 / started.elapsed().as_secs_f64()]
}
