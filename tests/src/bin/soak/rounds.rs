//! Rounds of load, a rest after each, and what is measured in both. Kills the daemon in the first half of the rounds.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lodge_tests::api::Api;
use lodge_tests::daemon::Daemon;
use lodge_tests::footprint::{self, Footprint};
use lodge_tests::model::{Beliefs, Done, Step, perform};
use lodge_tests::wait::until;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::args::Args;
use crate::load::{self, Kills, Plan, ROOMS, WORKERS};
use crate::outages::Outages;
use crate::random::Random;
use crate::worker::{Tally, Worker};

/// Between two looks at what is in use under load.
const SAMPLE_EVERY: Duration = Duration::from_secs(2);
/// Samples between two kills: 2 to 9, at random.
const SAMPLES_BETWEEN_KILLS: (u64, u64) = (2, 8);
/// What was deleted is off the disk, and every thread waits for work, within this time.
const AT_REST_WITHIN: Duration = Duration::from_secs(60);
/// A sandbox that stays through all rounds and all kills.
const VETERAN: &str = "veteran";

/// What was measured at rest, after a round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rest {
    /// Since the start.
    pub(crate) at: Duration,
    /// Creates and deletes until then.
    pub(crate) cycles: u64,
    /// Kills until then.
    pub(crate) kills: u64,
    /// What was in use.
    pub(crate) used: Footprint,
}

/// What is known in the end.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) seed: u64,
    /// Under load.
    pub(crate) busy: Vec<Footprint>,
    /// After each round; the first one is after a round of warming up.
    pub(crate) rests: Vec<Rest>,
    pub(crate) operations: u64,
    pub(crate) freezes: u64,
    /// The rests from this index on are of one daemon, that is warm.
    pub(crate) steady_from: usize,
}

/// A soak under way.
pub(crate) struct Soak {
    daemon: Daemon,
    outages: Outages,
    tally: Arc<Tally>,
    plan: Plan,
    random: Random,
    veteran: Beliefs,
    started: Instant,
    pub(crate) record: Record,
}

impl Soak {
    /// Starts a daemon.
    pub(crate) async fn start(args: &Args) -> Result<Self> {
        let daemon = Daemon::with_config("log_level = \"warn\"").await?;
        let record = Record {
            seed: args.seed,
            ..Default::default()
        };
        Ok(Self {
            daemon,
            outages: Outages::new(),
            tally: Arc::default(),
            plan: Plan::of(args.kind),
            random: Random::new(args.seed),
            veteran: Beliefs::default(),
            started: Instant::now(),
            record,
        })
    }

    /// All rounds.
    pub(crate) async fn run(&mut self) -> Result<()> {
        let half = self.plan.rounds / 2;
        for number in 0..self.plan.rounds {
            let kills = if number < half {
                self.plan.kills
            } else {
                Kills::Never
            };
            let done = self.round(number, kills).await;
            self.record.operations = self.tally.operations.load(Ordering::Relaxed);
            self.record.freezes = self.tally.freezes.load(Ordering::Relaxed);
            done.with_context(|| format!("round {number}"))?;
            self.tell(number);
        }
        // One round warms the daemon that stays.
        self.record.steady_from = match self.plan.kills {
            Kills::InFirstHalf => half as usize + 1,
            Kills::Never => 1,
        };
        Ok(())
    }

    async fn round(&mut self, number: u32, kills: Kills) -> Result<()> {
        let mut workers = JoinSet::new();
        for worker in 0..WORKERS {
            let names = (0..ROOMS).map(|room| format!("soak-{worker}-{room}"));
            let api = Api::new(&self.daemon.slot().home().join("lodged.sock"))?;
            let tally = Arc::clone(&self.tally);
            let worker = Worker::new(api, self.outages.watch(), tally, names.collect());
            let random = Random::new(self.random.below(u64::MAX));
            workers.spawn(load::round(worker, random, self.plan.share));
        }
        let mut until_kill = self.next_kill();
        while !workers.is_empty() {
            tokio::select! {
                Some(done) = workers.join_next() => done??,
                () = sleep(SAMPLE_EVERY) => {
                    self.record.busy.push(Footprint::of(&self.daemon)?);
                    until_kill = until_kill.saturating_sub(1);
                }
            }
            if kills == Kills::InFirstHalf && until_kill == 0 {
                self.kill()?;
                until_kill = self.next_kill();
            }
        }
        self.visit_veteran(number).await?;
        self.rest().await
    }

    fn next_kill(&mut self) -> u64 {
        let (least, more) = SAMPLES_BETWEEN_KILLS;
        least + self.random.below(more)
    }

    fn kill(&mut self) -> Result<()> {
        self.outages.begin();
        self.daemon.kill9()?;
        self.daemon.start_again()?;
        self.outages.end();
        Ok(())
    }

    /// The sandbox that stays has everything that was ever written to it, and the process that it was left with.
    async fn visit_veteran(&mut self, number: u32) -> Result<()> {
        let mut steps = vec![
            Step::Acquire,
            Step::Write(number),
            Step::Read,
            Step::Processes,
        ];
        if number == 0 {
            steps.insert(1, Step::Leave);
        }
        for step in steps {
            let answer = perform(self.daemon.api(), VETERAN, step).await?;
            let done = Done { step, answer };
            let after = self.veteran.after(&done);
            let contradiction = || format!("{VETERAN}: {done:?} contradicts {:?}", self.veteran);
            self.veteran = after.with_context(contradiction)?;
        }
        Ok(())
    }

    /// Waits until nothing goes on any more, and measures.
    async fn rest(&mut self) -> Result<()> {
        let used = until("the daemon is at rest", AT_REST_WITHIN, || async {
            let now = Footprint::of(&self.daemon)?;
            let at_rest = now.trash == 0 && now.sandboxes == 1 && now.busy_threads == 0;
            Ok(at_rest.then_some(now))
        });
        let used = used
            .await
            .with_context(|| format!("left after a round: {:?}", Footprint::of(&self.daemon)))?;
        let stuck = footprint::stuck(&self.daemon)?;
        ensure!(
            stuck.is_empty(),
            "processes {stuck:?} are in uninterruptible sleep"
        );
        self.record.rests.push(Rest {
            at: self.started.elapsed(),
            cycles: self.tally.cycles.load(Ordering::Relaxed),
            kills: self.outages.kills(),
            used,
        });
        Ok(())
    }

    fn tell(&self, number: u32) {
        eprintln!(
            "soak: round {} of {}: {} operations, {} cycles, {} kills",
            number + 1,
            self.plan.rounds,
            self.record.operations,
            self.tally.cycles.load(Ordering::Relaxed),
            self.outages.kills(),
        );
    }
}
