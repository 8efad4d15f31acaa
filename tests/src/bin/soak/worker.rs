//! One caller with sandboxes of its own: it knows what each of them should be, and checks every answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Error, Result, bail, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::api::{Api, by_name};
use lodge_tests::model::{Answer, Beliefs, Done, Step, perform};
use lodge_tests::room::Room;
use lodge_tests::wait::until;
use tonic::{Code, Status};

use crate::errand::{self, Errand};
use crate::outages::OutagesSeen;
use crate::random::Random;

/// A run that a kill met, or that nobody waits for, has gone within this time, with every process that ends with it.
const SETTLED_WITHIN: Duration = Duration::from_secs(60);

/// What was done so far, by all workers.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Calls and errands.
    pub(crate) operations: AtomicU64,
    /// Sandboxes that were created and deleted.
    pub(crate) cycles: AtomicU64,
    /// Freezes.
    pub(crate) freezes: AtomicU64,
}

impl Tally {
    fn count(&self, step: Step) {
        self.operations.fetch_add(1, Ordering::Relaxed);
        match step {
            Step::Delete => self.cycles.fetch_add(1, Ordering::Relaxed),
            Step::Pause => self.freezes.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
    }
}

/// A caller.
#[derive(Debug)]
pub(crate) struct Worker {
    api: Api,
    outages: OutagesSeen,
    tally: Arc<Tally>,
    rooms: Vec<(String, Beliefs)>,
}

impl Worker {
    /// One with sandboxes of these names, none of which is there yet.
    pub(crate) fn new(
        api: Api,
        outages: OutagesSeen,
        tally: Arc<Tally>,
        names: Vec<String>,
    ) -> Self {
        let rooms = names
            .into_iter()
            .map(|name| (name, Beliefs::default()))
            .collect();
        Self {
            api,
            outages,
            tally,
            rooms,
        }
    }

    /// Does something to one of its sandboxes.
    pub(crate) async fn anything(&mut self, random: &mut Random) -> Result<()> {
        let of = random.below(self.rooms.len() as u64) as usize;
        match random.choose(MIX) {
            Some(step) => self.step(of, numbered(step, random)).await,
            None => self.errand(of, random.choose(errand::WEIGHTS)).await,
        }
    }

    /// Does one step and checks its answer.
    pub(crate) async fn step(&mut self, of: usize, step: Step) -> Result<()> {
        self.outages.over().await?;
        let before = self.outages.now();
        let (name, believed) = &self.rooms[of];
        let answer = perform(&self.api, name, step).await?;
        self.tally.count(step);
        let unanswered = answer == Answer::Unanswered;
        ensure!(
            !unanswered || self.outages.since(before),
            "{step:?} of {name} was not answered"
        );
        let done = Done { step, answer };
        let contradiction = || format!("{name}: {done:?} contradicts {believed:?}");
        self.rooms[of].1 = believed.after(&done).with_context(contradiction)?;
        if unanswered {
            self.settle(of).await?;
        }
        Ok(())
    }

    async fn errand(&mut self, of: usize, errand: Errand) -> Result<()> {
        let before = self.outages.now();
        self.step(of, Step::Acquire).await?;
        let name = &self.rooms[of].0;
        let done = match self.room(name).await {
            Ok(room) => errand.run(&room).await,
            Err(error) => Err(error),
        };
        self.tally.operations.fetch_add(1, Ordering::Relaxed);
        match done {
            // A log has its last line before its run ends, and a call is answered before all that goes with its command
            // is gone.
            Ok(()) => {
                self.settle(of).await?;
                self.step(of, Step::Start).await
            }
            Err(error) if is_broken(&error) && self.outages.since(before) => {
                // A create that was not answered may not have happened; else it is started, as by any run.
                self.settle(of).await?;
                self.step(of, Step::Acquire).await
            }
            Err(error) => Err(error),
        }
    }

    async fn room(&self, name: &str) -> Result<Room> {
        let request = pb::GetSandboxRequest {
            sandbox: by_name(name),
        };
        match self.api.sandboxes().get(request).await {
            Ok(info) => Ok(Room::new(self.api.clone(), info.into_inner())),
            // A create that an outage cut off; the acquire before this was not answered either.
            Err(status) if status.code() == Code::NotFound => {
                Err(Status::unavailable("not created").into())
            }
            Err(status) => Err(status.into()),
        }
    }

    /// Waits until the daemon is up, what was begun is at its end, and no process is there but those that were left.
    async fn settle(&self, of: usize) -> Result<()> {
        let (name, believed) = &self.rooms[of];
        let (api, mut outages) = (self.api.clone(), self.outages.clone());
        let settled = until("nothing runs but what was left", SETTLED_WITHIN, || {
            let mut outages = outages.clone();
            let api = api.clone();
            async move {
                outages.over().await?;
                Ok(is_settled(&api, name, believed).await?.then_some(()))
            }
        });
        settled
            .await
            .with_context(|| format!("{name}, of which is believed {believed:?}"))?;
        outages.over().await
    }

    /// The end of a round: every sandbox has what was written to it, and goes.
    pub(crate) async fn finish(&mut self) -> Result<()> {
        for of in 0..self.rooms.len() {
            self.step(of, Step::Read).await?;
            while self.rooms[of].1.may_be_there() {
                self.step(of, Step::Delete).await?;
                self.step(of, Step::Get).await?;
            }
        }
        Ok(())
    }
}

/// How often each step is done; `None` is an errand.
const MIX: &[(u64, Option<Step>)] = &[
    (4, Some(Step::Acquire)),
    (4, Some(Step::Write(0))),
    (3, Some(Step::Read)),
    (1, Some(Step::Leave)),
    (1, Some(Step::Processes)),
    (1, Some(Step::Get)),
    (4, Some(Step::Pause)),
    (2, Some(Step::Resume)),
    (2, Some(Step::Stop)),
    (2, Some(Step::Start)),
    (4, Some(Step::Delete)),
    (8, None),
];

/// A write gets a number of its own.
fn numbered(step: Step, random: &mut Random) -> Step {
    match step {
        Step::Write(_) => Step::Write(random.below(1_000_000) as u32),
        other => other,
    }
}

/// Whether no run lives in a sandbox, and no process but those that runs left behind.
async fn is_settled(api: &Api, name: &str, believed: &Beliefs) -> Result<bool> {
    let request = pb::GetSandboxRequest {
        sandbox: by_name(name),
    };
    match api.sandboxes().get(request).await {
        Ok(now) if now.get_ref().live_runs > 0 => return Ok(false),
        Ok(_) => {}
        Err(status) => return Ok(status.code() == Code::NotFound),
    }
    match perform(api, name, Step::Processes).await? {
        Answer::Count(count) => Ok(believed.may_have_left(count)),
        // The next kill came, or the rest of a delete: the next look tells.
        _ => Ok(false),
    }
}

/// Whether the connection's end is somewhere among the causes.
fn is_broken(error: &Error) -> bool {
    let codes = [
        Code::Unavailable,
        Code::Unknown,
        Code::Cancelled,
        Code::Internal,
    ];
    let mut statuses = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<Status>());
    statuses.any(|status| codes.contains(&status.code()))
}

/// Creates, uses and deletes a sandbox.
pub(crate) async fn cycle(worker: &mut Worker) -> Result<()> {
    for step in [Step::Acquire, Step::Write(1), Step::Read, Step::Delete] {
        worker.step(0, step).await?;
    }
    Ok(())
}

/// Freezes and thaws a sandbox that always starts processes.
pub(crate) async fn freeze(worker: &mut Worker) -> Result<()> {
    for step in [Step::Pause, Step::Get, Step::Resume] {
        worker.step(0, step).await?;
    }
    Ok(())
}

/// What a worker of [`crate::args::Kind::Freezes`] needs before.
pub(crate) async fn make_busy(worker: &mut Worker) -> Result<()> {
    worker.step(0, Step::Acquire).await?;
    let room = worker.room(&worker.rooms[0].0).await?;
    let ran = room
        .run("while sleep 0.001; do :; done >/dev/null 2>&1 </dev/null &")
        .await?;
    if ran.result.left_running != 1 {
        bail!("{}", ran.story());
    }
    Ok(())
}
