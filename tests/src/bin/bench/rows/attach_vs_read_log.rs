//! Attaching to a live run, from the call to the first byte that the run had written before, against reading that byte of
//! its log by a unary call.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lodge_client::{Event, Sandbox, StdStream};

use crate::row::{Compared, Goal, Row, in_turn, millis};

/// Writes one byte and lives on.
const SCRIPT: &str = "printf x; exec sleep 3600";

pub(crate) const ROW: Row = Row {
    name: "attach_vs_read_log",
    unit: "ms",
    baseline: "ReadLog of the same byte",
    compared: Compared::P50,
    goal: Goal::Ceiling(2.0),
    measure: |world, samples| {
        Box::pin(async move {
            let sandbox = &world.sandbox;
            let mut live = sandbox.run(SCRIPT).timeout(Duration::ZERO).stream().await?;
            while !matches!(
                live.next().await.context("no byte came")??,
                Event::Output { .. }
            ) {}
            let run_id = live.run_id().to_owned();
            drop(live);
            let outcome = in_turn(
                samples,
                Duration::ZERO,
                async || attach(sandbox, &run_id).await,
                async || read_log(sandbox, &run_id).await,
            )
            .await;
            sandbox.kill(run_id).await?;
            outcome
        })
    },
};

async fn attach(sandbox: &Sandbox, run_id: &str) -> Result<Vec<f64>> {
    let started = Instant::now();
    let mut events = sandbox.attach(run_id).await?;
    loop {
        match events.next().await.context("no event came")?? {
            Event::Started { .. } => {}
            Event::Output { data, .. } => {
                ensure!(data == "x", "{data:?} came");
                return Ok(millis(started.elapsed()));
            }
            other => bail!("{other:?} came"),
        }
    }
}

async fn read_log(sandbox: &Sandbox, run_id: &str) -> Result<Vec<f64>> {
    let started = Instant::now();
    let part = sandbox.read_log(run_id, StdStream::Stdout, 0, 1).await?;
    ensure!(part.data == "x", "{:?} was read", part.data);
    Ok(millis(started.elapsed()))
}
