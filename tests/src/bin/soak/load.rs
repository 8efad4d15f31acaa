//! What is to be done in a round, and how many rounds there are.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::args::Kind;
use crate::random::Random;
use crate::worker::{Worker, cycle, freeze, make_busy};

/// Callers at once.
pub(crate) const WORKERS: usize = 6;
/// Sandboxes of each caller.
pub(crate) const ROOMS: usize = 3;
/// Rounds of a load that is given by a count: enough points for a slope.
const COUNTED_ROUNDS: u64 = 12;
/// A round of mixed load is about this long.
const ROUND: Duration = Duration::from_secs(45);
/// Fewest rounds of mixed load.
const FEWEST_ROUNDS: u32 = 6;

/// What one caller does in one round.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Share {
    /// Anything, for so long.
    Mixed(Duration),
    /// So many creates and deletes.
    Cycles(u64),
    /// So many freezes and thaws.
    Freezes(u64),
}

/// The rounds of a soak.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) rounds: u32,
    pub(crate) share: Share,
    pub(crate) kills: Kills,
}

/// Whether the daemon is killed in the first half of all rounds. The second half is one daemon's life, so that its
/// memory has a slope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kills {
    InFirstHalf,
    Never,
}

impl Plan {
    /// The rounds that it takes.
    pub(crate) fn of(kind: Kind) -> Self {
        let counted = |count: u64| count.div_ceil(COUNTED_ROUNDS * WORKERS as u64);
        let rounds = COUNTED_ROUNDS as u32;
        match kind {
            Kind::Mixed(time) => {
                let rounds = (time.as_secs() / ROUND.as_secs()) as u32;
                let rounds = rounds.max(FEWEST_ROUNDS);
                Self {
                    rounds,
                    share: Share::Mixed(time / rounds),
                    kills: Kills::InFirstHalf,
                }
            }
            Kind::Cycles(count) => Self {
                rounds,
                share: Share::Cycles(counted(count)),
                kills: Kills::Never,
            },
            Kind::Freezes(count) => Self {
                rounds,
                share: Share::Freezes(counted(count)),
                kills: Kills::Never,
            },
        }
    }
}

/// One caller's round, with the check at its end.
pub(crate) async fn round(mut worker: Worker, mut random: Random, share: Share) -> Result<()> {
    match share {
        Share::Mixed(time) => {
            let started = Instant::now();
            while started.elapsed() < time {
                worker.anything(&mut random).await?;
            }
        }
        Share::Cycles(count) => {
            for _ in 0..count {
                cycle(&mut worker).await?;
            }
        }
        Share::Freezes(count) => {
            make_busy(&mut worker).await?;
            for _ in 0..count {
                freeze(&mut worker).await?;
            }
        }
    }
    worker.finish().await
}
