//! As `run_true_vs_posix_spawn`, with a pause before each call: an agent thinks between its calls, and what a hot loop
//! keeps warm (processor caches, grace periods of the kernel) is cold then.

use std::time::Duration;

use crate::row::{Compared, Goal, Row, in_turn};

/// Before each call, of either side.
const PAUSE: Duration = Duration::from_millis(200);

pub(crate) const ROW: Row = Row {
    name: "run_true_idle_vs_posix_spawn",
    unit: "ms",
    baseline: "posix_spawn + wait, 200 ms apart",
    compared: Compared::P50,
    goal: Goal::Ceiling(2.5),
    measure: |world, samples| {
        Box::pin(async move {
            let (sandbox, spawner) = (&world.sandbox, &mut world.spawner);
            let own = async || super::timed_run(sandbox).await;
            in_turn(samples, PAUSE, own, async || spawner.spawn(1)).await
        })
    },
};
