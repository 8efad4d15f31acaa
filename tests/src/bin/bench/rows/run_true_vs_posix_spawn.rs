//! Unary `run("true")` over the unix socket against posix_spawn + wait of the same bash, user and environment.

use std::time::Duration;

use crate::row::{Compared, Goal, Row, in_turn};

pub(crate) const ROW: Row = Row {
    name: "run_true_vs_posix_spawn",
    unit: "ms",
    baseline: "posix_spawn + wait of bash -c true",
    compared: Compared::P50,
    goal: Goal::Ceiling(2.0),
    measure: |world, samples| {
        Box::pin(async move {
            let (sandbox, spawner) = (&world.sandbox, &mut world.spawner);
            let own = async || super::timed_run(sandbox).await;
            in_turn(samples, Duration::ZERO, own, async || spawner.spawn(1)).await
        })
    },
};
