//! 50 `run("true")` at once against 50 posix_spawns at once; each sample is from the start of all to the end of one.

use std::time::{Duration, Instant};

use anyhow::Result;
use lodge_client::Sandbox;
use tokio::task::JoinSet;

use crate::row::{Compared, Goal, Row, in_turn, millis};

/// Runs at once.
const AT_ONCE: usize = 50;

pub(crate) const ROW: Row = Row {
    name: "runs_50_concurrent_vs_posix_spawn",
    unit: "ms",
    baseline: "50 posix_spawn + wait at once",
    compared: Compared::P99,
    goal: Goal::Ceiling(3.0),
    measure: |world, samples| {
        Box::pin(async move {
            let (sandbox, spawner) = (&world.sandbox, &mut world.spawner);
            let spawn = async || spawner.spawn(AT_ONCE);
            let rounds = samples.div_ceil(AT_ONCE).max(MIN_ROUNDS);
            in_turn(
                rounds,
                Duration::ZERO,
                async || all_at_once(sandbox).await,
                spawn,
            )
            .await
        })
    },
};

/// Rounds at least: a p99 of few rounds is the slowest of one of them.
const MIN_ROUNDS: usize = 20;

async fn all_at_once(sandbox: &Sandbox) -> Result<Vec<f64>> {
    let started = Instant::now();
    let mut runs = JoinSet::new();
    for _ in 0..AT_ONCE {
        let sandbox = sandbox.clone();
        runs.spawn(async move { sandbox.run("true").await.map(|_| started.elapsed()) });
    }
    let mut times = Vec::with_capacity(AT_ONCE);
    while let Some(run) = runs.join_next().await {
        times.append(&mut millis(run??));
    }
    Ok(times)
}
