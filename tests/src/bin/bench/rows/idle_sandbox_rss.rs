//! What an idle sandbox costs beside its own processes: the holders' memory and what the daemon and its launcher grew
//! by, for each of 100 sandboxes, against containerd's shim, which every container of Docker has. And what a frozen one
//! costs with a process of its own in it, against the same before it was frozen.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lodge_client::Client;
use lodge_tests::daemon::Daemon;
use lodge_tests::{cgroup, host};

use crate::docker::Docker;
use crate::memory::{sum_kib, with_arguments};
use crate::row::{Compared, Goal, Outcome, Row, Samples, in_turn};

/// Sandboxes that are idle at once.
const SANDBOXES: usize = 100;
/// Containers that Docker's side is the mean of.
const CONTAINERS: usize = 5;

pub(crate) const ROW: Row = Row {
    name: "idle_sandbox_rss",
    unit: "KiB",
    baseline: "containerd-shim",
    compared: Compared::P50,
    goal: Goal::KibCeiling(1024.0),
    measure: |world, samples| {
        Box::pin(async move {
            let Some(docker) = Docker::find(&world.rootfs)? else {
                return Ok(Outcome::NotMeasured(
                    "docker does not run: make bench-peers".into(),
                ));
            };
            let mut containers = Vec::new();
            let mut shims = Vec::new();
            for _ in 0..CONTAINERS {
                let container = docker.create(&world.identity, &["sleep", "infinity"])?;
                container.start()?;
                shims.extend(with_arguments(&["-namespace", container.id()])?);
                containers.push(container);
            }
            ensure!(
                shims.len() == CONTAINERS,
                "{} shims of {CONTAINERS} containers",
                shims.len()
            );
            let shims = async || Ok(vec![sum_kib(&shims)? / CONTAINERS as f64]);

            let idle = Idle::acquire(&world.client, &world.daemon).await?;
            let outcome = in_turn(samples, Duration::ZERO, async || idle.measure(), shims).await;
            idle.delete(&world.client).await?;
            outcome
        })
    },
};

/// A process that the sandboxes of the frozen row have: a shell with something in its memory.
const HOLDS_MEMORY: &str = "x=$(head -c 4000000 /dev/zero | tr '\\0' x); while sleep 3600; do :; done >/dev/null 2>&1 </dev/null &";

pub(crate) const FROZEN_ROW: Row = Row {
    name: "frozen_sandbox_rss",
    unit: "KiB",
    baseline: "the same before the freeze",
    compared: Compared::P50,
    // A freeze gives memory back where the host can and never takes any; the daemon's own comes and goes by a few KiB.
    goal: Goal::Ceiling(1.02),
    measure: |world, _| {
        Box::pin(async move {
            let idle = Idle::acquire(&world.client, &world.daemon).await?;
            let mut measured = Samples::default();
            for number in 0..SANDBOXES {
                let run = world.client.at(name(number)).run(HOLDS_MEMORY).await?;
                ensure!(run.outcome.left_running > 0, "no process holds memory");
            }
            measured.baseline = idle.measure_all(&world.daemon)?;
            for number in 0..SANDBOXES {
                world.client.at(name(number)).pause().await?;
            }
            measured.own = idle.measure_all(&world.daemon)?;
            idle.delete(&world.client).await?;
            Ok(Outcome::Measured(measured))
        })
    },
};

/// Idle sandboxes and whose memory they cost.
struct Idle {
    services: Vec<i32>,
    services_before_kib: f64,
    holders: Vec<i32>,
}

impl Idle {
    async fn acquire(client: &Client, daemon: &Daemon) -> Result<Self> {
        let lodged = daemon.pid()?;
        let launcher = host::children(lodged)?;
        ensure!(
            launcher.len() == 1,
            "lodged has {} children, not its launcher alone",
            launcher.len()
        );
        let services = vec![lodged, launcher[0]];
        let services_before_kib = sum_kib(&services)?;
        let before = cgroup::members(&daemon.cgroup())?;
        for number in 0..SANDBOXES {
            client
                .sandbox(name(number))
                .await
                .context("acquire an idle sandbox")?;
        }
        let after = cgroup::members(&daemon.cgroup())?;
        let holders: Vec<i32> = after.difference(&before).copied().collect();
        ensure!(
            holders.len() == SANDBOXES,
            "{} processes of {SANDBOXES} sandboxes",
            holders.len()
        );
        Ok(Self {
            services,
            services_before_kib,
            holders,
        })
    }

    fn measure(&self) -> Result<Vec<f64>> {
        let growth = sum_kib(&self.services)? - self.services_before_kib;
        Ok(vec![(sum_kib(&self.holders)? + growth) / SANDBOXES as f64])
    }

    /// With the sandboxes' own processes.
    fn measure_all(&self, daemon: &Daemon) -> Result<Vec<f64>> {
        let growth = sum_kib(&self.services)? - self.services_before_kib;
        let members: Vec<i32> = cgroup::members(&daemon.cgroup())?.into_iter().collect();
        Ok(vec![(sum_kib(&members)? + growth) / SANDBOXES as f64])
    }

    async fn delete(&self, client: &Client) -> Result<()> {
        for number in 0..SANDBOXES {
            client.at(name(number)).delete().await?;
        }
        Ok(())
    }
}

fn name(number: usize) -> String {
    format!("idle-{number}")
}
