//! A daemon that was killed is started again with hundreds of running sandboxes: from its start until it is ready and has
//! listed every one of them as running. No baseline: the goal is 5 s and 10 ms for each.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lodge_client::{Client, SandboxState};
use lodge_tests::daemon::{Daemon, Options};
use lodge_tests::slot::Width;

use crate::row::{Compared, Goal, Measuring, Row, alone, millis};
use crate::world::LOG_LEVEL;

/// Restarts that are measured at most: each takes a while, and they differ little.
const RESTARTS: usize = 10;

pub(crate) const OF_100: Row = Row {
    name: "recovery_of_100",
    unit: "ms",
    baseline: "none",
    compared: Compared::P50,
    goal: Goal::MillisCeiling(6_000.0),
    measure: |_, samples| measure(100, samples),
};

pub(crate) const OF_500: Row = Row {
    name: "recovery_of_500",
    unit: "ms",
    baseline: "none",
    compared: Compared::P50,
    goal: Goal::MillisCeiling(10_000.0),
    measure: |_, samples| measure(500, samples),
};

fn measure<'a>(sandboxes: usize, samples: usize) -> Measuring<'a> {
    Box::pin(async move {
        let mut daemon = Daemon::start(Options {
            config: LOG_LEVEL.into(),
            width: Width::Wide,
            ..Options::default()
        })
        .await?;
        let client = Client::connect(&daemon.endpoint()).await?;
        for number in 0..sandboxes {
            client.sandbox(format!("recovered-{number}")).await?;
        }
        drop(client);
        let outcome = alone(samples.min(RESTARTS), Duration::ZERO, async || {
            daemon.kill9()?;
            let started = Instant::now();
            daemon.start_again()?;
            all_run(&daemon, sandboxes).await?;
            Ok(millis(started.elapsed()))
        })
        .await;
        daemon.stop()?;
        outcome
    })
}

async fn all_run(daemon: &Daemon, sandboxes: usize) -> Result<()> {
    let listed = Client::connect(&daemon.endpoint()).await?.list().await?;
    let running = listed
        .iter()
        .filter(|one| one.state == SandboxState::Running);
    let running = running.count();
    ensure!(running == sandboxes, "{running} of {sandboxes} run");
    Ok(())
}
