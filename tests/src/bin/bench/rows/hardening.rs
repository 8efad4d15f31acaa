//! What the protections of a sandbox cost: against the same daemon with all of them switched off that a test can switch off.

use std::time::Duration;

use anyhow::{Context as _, Result};
use lodge_client::Client;
use lodge_tests::daemon::{Daemon, Options};

use super::acquire_run_vs_runc_run::against;
use super::timed_run;
use crate::row::{Compared, Goal, Outcome, Row, in_turn};
use crate::world::{LOG_LEVEL, World};

/// The name of sandboxes on the weak side.
const NAME: &str = "weak";

pub(crate) const RUN: Row = Row {
    name: "run_true_vs_without_protections",
    unit: "ms",
    baseline: "the same, all protections off",
    compared: Compared::P50,
    goal: Goal::Ceiling(1.25),
    measure: |world, samples| {
        Box::pin(async move {
            let weak = Weak::start().await?;
            let (strong, weak) = (&world.sandbox, weak.client.sandbox(NAME).await?);
            let own = async || timed_run(strong).await;
            in_turn(samples, Duration::ZERO, own, async || {
                timed_run(&weak).await
            })
            .await
        })
    },
};

pub(crate) const ACQUIRE: Row = Row {
    name: "acquire_run_vs_without_protections",
    measure: |world, samples| Box::pin(acquire(world, samples)),
    ..RUN
};

async fn acquire(world: &mut World, samples: usize) -> Result<Outcome> {
    let weak = Weak::start().await?;
    let baseline =
        async || super::acquire_run_vs_runc_run::timed_acquire_and_run(&weak.client).await;
    against(&world.client, samples, baseline).await
}

/// A daemon whose sandboxes have no protection that can be missed.
struct Weak {
    client: Client,
    _daemon: Daemon,
}

impl Weak {
    async fn start() -> Result<Self> {
        let daemon = Daemon::start(Options {
            config: LOG_LEVEL.into(),
            ..Options::weakened("all")
        })
        .await
        .context("a lodged with the switch is wanted: make bench-hardening")?;
        Ok(Self {
            client: Client::connect(&daemon.endpoint()).await?,
            _daemon: daemon,
        })
    }
}
