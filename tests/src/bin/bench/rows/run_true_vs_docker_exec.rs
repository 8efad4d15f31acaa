//! Unary `run("true")` against `docker exec` of the same in a container of the same files, by Docker's API.

use std::time::{Duration, Instant};

use crate::docker::Docker;
use crate::row::{Compared, Goal, Outcome, Row, in_turn, millis};

pub(crate) const ROW: Row = Row {
    name: "run_true_vs_docker_exec",
    unit: "ms",
    baseline: "docker exec by its API",
    compared: Compared::P50,
    goal: Goal::Ceiling(1.0 / 30.0),
    measure: |world, samples| {
        Box::pin(async move {
            let Some(docker) = Docker::find(&world.rootfs)? else {
                return Ok(Outcome::NotMeasured(
                    "docker does not run: make bench-peers".into(),
                ));
            };
            let (sandbox, identity) = (&world.sandbox, &world.identity);
            let container = docker.create(identity, &["sleep", "infinity"])?;
            container.start()?;
            let own = async || super::timed_run(sandbox).await;
            let exec = async || {
                let started = Instant::now();
                container.exec(identity, &["bash", "-c", "true"])?;
                Ok(millis(started.elapsed()))
            };
            in_turn(samples, Duration::ZERO, own, exec).await
        })
    },
};
