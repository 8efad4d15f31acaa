//! A new sandbox and its first run against what `docker run` does, by Docker's API: create, start, wait. Removing is
//! counted on neither side.

use std::time::Instant;

use lodge_tests::storage::Driver;

use super::acquire_run_vs_runc_run::against;
use crate::docker::Docker;
use crate::row::{Compared, Goal, Measuring, Outcome, Row, millis};
use crate::world::World;

pub(crate) const ROW: Row = Row {
    name: "acquire_run_vs_docker_run",
    unit: "ms",
    baseline: "docker run by its API",
    compared: Compared::P50,
    goal: Goal::Ceiling(1.0 / 30.0),
    measure: |world, samples| measure(world, samples, None),
};

/// On the storage driver overlay, whatever the other rows are on.
pub(crate) const OVERLAY: Row = Row {
    name: "acquire_run_on_overlay_vs_docker_run",
    measure: |world, samples| measure(world, samples, Some(Driver::Overlay)),
    ..ROW
};

/// On the storage driver btrfs, in a pool.
pub(crate) const BTRFS: Row = Row {
    name: "acquire_run_on_btrfs_vs_docker_run",
    measure: |world, samples| measure(world, samples, Some(Driver::Btrfs)),
    ..ROW
};

fn measure(world: &mut World, samples: usize, driver: Option<Driver>) -> Measuring<'_> {
    Box::pin(async move {
        let client = world.client_on(driver).await?;
        let Some(docker) = Docker::find(&world.rootfs)? else {
            return Ok(Outcome::NotMeasured(
                "docker does not run: make bench-peers".into(),
            ));
        };
        let identity = &world.identity;
        let run = async || {
            let started = Instant::now();
            let container = docker.create(identity, &["bash", "-c", "true"])?;
            container.start()?;
            container.wait()?;
            Ok(millis(started.elapsed()))
        };
        against(&client, samples, run).await
    })
}
