//! 1 GiB through a streaming run against the same command into `cat >/dev/null` on the host.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lodge_client::{Event, Sandbox};

use crate::row::{Compared, Goal, Row, in_turn};

/// Writes 1 GiB in pieces of a pipe's capacity, so that the command itself is not what is slow.
const COMMAND: &str = "dd if=/dev/zero bs=64k count=16384 status=none";
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
    measure: |world, samples| {
        Box::pin(async move {
            let sandbox = &world.sandbox;
            in_turn(
                samples,
                Duration::ZERO,
                async || stream(sandbox).await,
                async || pipe(),
            )
            .await
        })
    },
};

async fn stream(sandbox: &Sandbox) -> Result<Vec<f64>> {
    let started = Instant::now();
    let mut events = sandbox.run(COMMAND).timeout(TIMEOUT).stream().await?;
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

fn pipe() -> Result<Vec<f64>> {
    let started = Instant::now();
    let status = Command::new("/bin/sh")
        .args(["-c", &format!("{COMMAND} | cat >/dev/null")])
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
