//! What a row of the bench is, and how its two sides are measured in turn.

use std::pin::Pin;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::world::World;

/// Rounds that are not counted: page cache, lazily made things, branch predictors.
const WARM_UP: usize = 5;
/// A row ends after this time with the samples that it has, whatever was asked for.
const ROW_LIMIT: Duration = Duration::from_secs(20 * 60);

/// One line of the table.
pub(crate) struct Row {
    /// Its name, stable: goals and later comparisons refer to it.
    pub(crate) name: &'static str,
    /// What the samples are in.
    pub(crate) unit: &'static str,
    /// What Lodge is compared with.
    pub(crate) baseline: &'static str,
    /// What of the samples is compared.
    pub(crate) compared: Compared,
    /// What the ratio should be.
    pub(crate) goal: Goal,
    /// Measures both sides.
    pub(crate) measure: for<'a> fn(&'a mut World, usize) -> Measuring<'a>,
}

/// A row being measured.
pub(crate) type Measuring<'a> = Pin<Box<dyn Future<Output = Result<Outcome>> + 'a>>;

/// Which percentile of the samples the ratio is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compared {
    /// The median.
    P50,
    /// The slowest hundredth.
    P99,
}

/// What a ratio (Lodge / baseline) should be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    /// Smaller is better: time, memory.
    Ceiling(f64),
    /// Larger is better: throughput.
    Floor(f64),
    /// So many KiB at most, whatever the baseline.
    KibCeiling(f64),
    /// So many milliseconds at most, whatever the baseline.
    MillisCeiling(f64),
    /// None is set.
    None,
}

/// What came of measuring a row.
pub(crate) enum Outcome {
    /// Samples of both sides.
    Measured(Samples),
    /// Why there are none.
    NotMeasured(String),
}

/// Raw samples, in the row's unit and in the order in which they were taken.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    /// Lodge's.
    pub(crate) own: Vec<f64>,
    /// The baseline's.
    pub(crate) baseline: Vec<f64>,
}

/// Measures both sides in turn, so that whatever else the host does hits both alike. `pause` passes before each
/// call. A side may give several samples a round.
pub(crate) async fn in_turn(
    rounds: usize,
    pause: Duration,
    mut own: impl AsyncFnMut() -> Result<Vec<f64>>,
    mut baseline: impl AsyncFnMut() -> Result<Vec<f64>>,
) -> Result<Outcome> {
    let started = Instant::now();
    let mut samples = Samples::default();
    for round in 0..rounds + WARM_UP {
        // Who goes first changes every round: neither always finds the caches that the other left.
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for own_turn in [round % 2 == 0, round % 2 == 1] {
            tokio::time::sleep(pause).await;
            if own_turn {
                a = own().await?;
            } else {
                b = baseline().await?;
            }
        }
        if round >= WARM_UP {
            samples.own.append(&mut a);
            samples.baseline.append(&mut b);
        }
        if started.elapsed() > ROW_LIMIT {
            eprintln!(
                "bench: stopped after {ROW_LIMIT:?} with {} samples",
                samples.own.len()
            );
            break;
        }
    }
    Ok(Outcome::Measured(samples))
}

/// Measures Lodge alone, where there is nothing to compare it with. `pause` passes before each call.
pub(crate) async fn alone(
    rounds: usize,
    pause: Duration,
    own: impl AsyncFnMut() -> Result<Vec<f64>>,
) -> Result<Outcome> {
    in_turn(rounds, pause, own, async || Ok(Vec::new())).await
}

/// A duration as the sample of a row in milliseconds.
pub(crate) fn millis(time: Duration) -> Vec<f64> {
    vec![time.as_secs_f64() * 1e3]
}
