//! A new sandbox and its first run against `runc run` of the same files. Deleting the sandbox is not counted; runc
//! counts it, since it cannot do without.

use std::time::{Duration, Instant};

use anyhow::Result;
use lodge_client::Client;
use lodge_tests::storage::Driver;

use crate::row::{Compared, Goal, Measuring, Outcome, Row, in_turn, millis};
use crate::runc::Runc;
use crate::world::World;

/// The container, new each time, and the sandbox likewise.
const NAME: &str = "first-run";

pub(crate) const ROW: Row = Row {
    name: "acquire_run_vs_runc_run",
    unit: "ms",
    baseline: "runc run",
    compared: Compared::P50,
    goal: Goal::Ceiling(1.0 / 3.0),
    measure: |world, samples| measure(world, samples, None),
};

/// On the storage driver overlay, whatever the other rows are on.
pub(crate) const OVERLAY: Row = Row {
    name: "acquire_run_on_overlay_vs_runc_run",
    measure: |world, samples| measure(world, samples, Some(Driver::Overlay)),
    ..ROW
};

/// On the storage driver btrfs, in a pool.
pub(crate) const BTRFS: Row = Row {
    name: "acquire_run_on_btrfs_vs_runc_run",
    measure: |world, samples| measure(world, samples, Some(Driver::Btrfs)),
    ..ROW
};

fn measure(world: &mut World, samples: usize, driver: Option<Driver>) -> Measuring<'_> {
    Box::pin(async move {
        let client = world.client_on(driver).await?;
        let Some(runc) = Runc::find(&world.rootfs)? else {
            return Ok(Outcome::NotMeasured(
                "runc is not installed: make bench-peers".into(),
            ));
        };
        let bundle = runc.bundle(NAME, &world.identity, &["bash", "-c", "true"])?;
        let run = async || {
            let started = Instant::now();
            runc.run(&bundle, NAME)?;
            Ok(millis(started.elapsed()))
        };
        against(&client, samples, run).await
    })
}

/// A new sandbox and its first run, and the baseline, in turn.
pub(super) async fn against(
    client: &Client,
    samples: usize,
    baseline: impl AsyncFnMut() -> Result<Vec<f64>>,
) -> Result<Outcome> {
    let own = async || timed_acquire_and_run(client).await;
    in_turn(samples, Duration::ZERO, own, baseline).await
}

/// Acquires a new sandbox and runs `true` in it, in milliseconds; then deletes it.
pub(super) async fn timed_acquire_and_run(client: &Client) -> Result<Vec<f64>> {
    let started = Instant::now();
    let sandbox = client.sandbox(NAME).await?;
    sandbox.run("true").await?;
    let took = started.elapsed();
    sandbox.delete().await?;
    Ok(millis(took))
}
