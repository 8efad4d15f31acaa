//! Freezing and thawing a sandbox that computes, from the call to its answer. The freeze's answer waits until the host has
//! been given back what memory it can be. No baseline: the goal is a time.

use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::row::{Compared, Goal, Measuring, Row, alone, millis};
use crate::world::World;

/// The sandbox, made for these rows alone: others must not find theirs frozen.
const NAME: &str = "frozen-and-thawed";
/// It always computes: a freeze has something to stop.
const COMPUTES: &str = "while :; do :; done >/dev/null 2>&1 </dev/null &";
/// What either may take.
const GOAL: Goal = Goal::MillisCeiling(5.0);

pub(crate) const FREEZE: Row = Row {
    name: "freeze",
    unit: "ms",
    baseline: "none",
    compared: Compared::P50,
    goal: GOAL,
    measure: |world, samples| measure(world, samples, Verb::Freeze),
};

pub(crate) const THAW: Row = Row {
    name: "thaw",
    unit: "ms",
    baseline: "none",
    compared: Compared::P50,
    goal: GOAL,
    measure: |world, samples| measure(world, samples, Verb::Thaw),
};

#[derive(Clone, Copy)]
enum Verb {
    Freeze,
    Thaw,
}

fn measure(world: &mut World, samples: usize, verb: Verb) -> Measuring<'_> {
    Box::pin(async move {
        let sandbox = world.client.sandbox(NAME).await?;
        let busy = sandbox.run(COMPUTES).await?;
        ensure!(busy.outcome.left_running == 1, "nothing computes");
        let outcome = alone(samples, Duration::ZERO, async || {
            let started = Instant::now();
            sandbox.pause().await?;
            let frozen = started.elapsed();
            let started = Instant::now();
            sandbox.resume().await?;
            let thawed = started.elapsed();
            Ok(millis(match verb {
                Verb::Freeze => frozen,
                Verb::Thaw => thawed,
            }))
        })
        .await;
        sandbox.delete().await?;
        outcome
    })
}
