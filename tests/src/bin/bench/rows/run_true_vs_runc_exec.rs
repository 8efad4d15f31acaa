//! Unary `run("true")` against `runc exec` of the same in a container of the same files.

use std::time::{Duration, Instant};

use crate::row::{Compared, Goal, Outcome, Row, in_turn, millis};
use crate::runc::Runc;

/// The container that commands are executed in.
const CONTAINER: &str = "exec";

pub(crate) const ROW: Row = Row {
    name: "run_true_vs_runc_exec",
    unit: "ms",
    baseline: "runc exec",
    compared: Compared::P50,
    goal: Goal::Ceiling(1.0),
    measure: |world, samples| {
        Box::pin(async move {
            let Some(runc) = Runc::find(&world.rootfs)? else {
                return Ok(Outcome::NotMeasured(
                    "runc is not installed: make bench-peers".into(),
                ));
            };
            let (sandbox, identity) = (&world.sandbox, &world.identity);
            let bundle = runc.bundle(CONTAINER, identity, &["sleep", "infinity"])?;
            runc.start(&bundle, CONTAINER)?;
            let own = async || super::timed_run(sandbox).await;
            let exec = async || {
                let started = Instant::now();
                runc.exec(CONTAINER, identity, &["bash", "-c", "true"])?;
                Ok(millis(started.elapsed()))
            };
            in_turn(samples, Duration::ZERO, own, exec).await
        })
    },
};
