//! A new sandbox and its first run against what `docker run` does, by Docker's API: create, start, wait. Removing is
//! counted on neither side.

use std::time::{Duration, Instant};

use super::acquire_run_vs_runc_run::timed_acquire_and_run;
use crate::docker::Docker;
use crate::row::{Compared, Goal, Outcome, Row, in_turn, millis};

pub(crate) const ROW: Row = Row {
    name: "acquire_run_vs_docker_run",
    unit: "ms",
    baseline: "docker run by its API",
    compared: Compared::P50,
    goal: Goal::Ceiling(1.0 / 30.0),
    measure: |world, samples| {
        Box::pin(async move {
            let Some(docker) = Docker::find(&world.rootfs)? else {
                return Ok(Outcome::NotMeasured(
                    "docker does not run: make bench-peers".into(),
                ));
            };
            let (client, identity) = (&world.client, &world.identity);
            let run = async || {
                let started = Instant::now();
                let container = docker.create(identity, &["bash", "-c", "true"])?;
                container.start()?;
                container.wait()?;
                Ok(millis(started.elapsed()))
            };
            in_turn(
                samples,
                Duration::ZERO,
                async || timed_acquire_and_run(client).await,
                run,
            )
            .await
        })
    },
};
