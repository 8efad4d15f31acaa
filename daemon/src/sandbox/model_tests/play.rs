//! A sequence, with the checks after each of its moves.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;

use super::super::fake::{Fake, FakeLive, turns};
use super::super::filter::Filter;
use super::super::handle::{Handle, Resume};
use super::super::id::{SandboxId, Tenant};
use super::super::runtime::Motion;
use super::super::state::State;
use super::belief::{self, Answer, Belief, Beliefs, Done};
use super::daemon::{Daemon, LABEL};
use super::moves::{Fault, HostFate, Move, Op, SANDBOXES, Timed};

const NAMES: [&str; SANDBOXES] = ["a", "b"];

/// Plays a sequence on an empty host. What is wrong, if something is.
pub(super) fn play(sequence: &[Move]) -> Result<(), String> {
    let fake = Fake::default();
    let mut play = Play {
        daemon: Some(Daemon::on(&fake)),
        fake,
        beliefs: vec![Beliefs::from([Belief::Absent]); SANDBOXES],
    };
    for (number, movement) in sequence.iter().enumerate() {
        let made = play.make(movement).and_then(|()| play.check());
        made.map_err(|why| format!("move {number}, {movement:?}: {why}"))?;
    }
    play.end()
}

struct Play {
    fake: Fake,
    /// There but for the moment of a kill.
    daemon: Option<Daemon>,
    beliefs: Vec<Beliefs>,
}

impl Play {
    fn make(&mut self, movement: &Move) -> Result<(), String> {
        match movement {
            Move::Do { of, ops, fault } => self.all_at_once(*of, ops, *fault),
            Move::Killed {
                of,
                ops,
                after,
                host,
            } => self.killed(*of, ops, *after, *host),
            Move::Wait(time) => self.wait(*time),
            Move::Busy(of, time) => self.busy(*of, *time),
        }
    }

    fn wait(&mut self, time: Duration) -> Result<(), String> {
        self.daemon().wait(time, async { Ok(()) })?;
        self.daemon().calm_down()?;
        for beliefs in &mut self.beliefs {
            *beliefs = belief::after_waiting(beliefs, time);
        }
        Ok(())
    }

    /// What is in use is left alone, however long.
    fn busy(&mut self, of: usize, time: Duration) -> Result<(), String> {
        let acquire = Timed {
            op: Op::Acquire(Resume::Auto),
            after: 0,
        };
        self.all_at_once(of, &[acquire], None)?;
        self.nothing_is_lost()?;
        let daemon = self.daemon();
        let handle = daemon.handle(NAMES[of])?;
        if handle.state() == State::Damaged {
            return Ok(());
        }
        let in_use = daemon.wait(time, async {
            Ok(handle.admit(Resume::Error).await?.use_on())
        })?;
        if handle.state() != State::Running {
            return Err(format!("it is {:?} though it is in use", handle.state()));
        }
        // Time outside the daemon is another one.
        daemon.run(async { drop(in_use) })?;
        daemon.calm_down()?;
        let other = (of + 1) % SANDBOXES;
        self.beliefs[other] = belief::after_waiting(&self.beliefs[other], time);
        Ok(())
    }

    fn all_at_once(
        &mut self,
        of: usize,
        ops: &[Timed],
        fault: Option<Fault>,
    ) -> Result<(), String> {
        self.fake.world().failing.extend(fault);
        let daemon = self.daemon();
        let (answers, calls) = begin(daemon, NAMES[of], ops);
        for call in calls {
            let ended = daemon.run(call)?;
            ended.map_err(|panic| format!("a call panics: {panic}"))?;
        }
        daemon.calm_down()?;
        let met = self.fake.world().failing.pop().is_none();
        self.believe(of, ops, &answers.take(), fault.filter(|_| met))
    }

    fn killed(
        &mut self,
        of: usize,
        ops: &[Timed],
        after: u8,
        host: HostFate,
    ) -> Result<(), String> {
        let daemon = self.daemon();
        let (answers, _) = begin(daemon, NAMES[of], ops);
        daemon.run(turns(after.into()))?;
        self.daemon = None;
        let rebooted = host == HostFate::Reboots;
        if rebooted {
            self.fake.reboot();
        }
        self.believe(of, ops, &answers.take(), None)?;
        for beliefs in &mut self.beliefs {
            *beliefs = belief::after_kill(beliefs, rebooted);
        }
        self.daemon = Some(Daemon::on(&self.fake));
        Ok(())
    }

    fn believe(
        &mut self,
        of: usize,
        ops: &[Timed],
        answers: &[Answer],
        fault: Option<Fault>,
    ) -> Result<(), String> {
        let ops = ops.iter().zip(answers);
        let done: Vec<Done> = ops
            .map(|(timed, answer)| Done {
                op: timed.op,
                answer: answer.clone(),
            })
            .collect();
        let after = belief::after(&self.beliefs[of], &done, fault);
        if after.is_empty() {
            return Err(format!("{done:?} contradicts {:?}", self.beliefs[of]));
        }
        self.beliefs[of] = after;
        Ok(())
    }

    /// Nothing is lost, and what the registry says is what the host has.
    fn check(&mut self) -> Result<(), String> {
        self.nothing_is_lost()?;
        self.host_agrees()
    }

    fn nothing_is_lost(&mut self) -> Result<(), String> {
        let listed =
            self.daemon()
                .registry()
                .list(&Tenant::default(), &Filter::default(), None, 100);
        for (name, beliefs) in NAMES.iter().zip(&mut self.beliefs) {
            let mut found = listed
                .iter()
                .filter(|one| one.identity().name.as_str() == *name);
            let now = found.next().map(|one| (one.id(), one.state(), label(one)));
            if found.next().is_some() {
                return Err(format!("{name} is listed twice"));
            }
            let left = belief::seen(beliefs, now);
            if left.is_empty() {
                return Err(format!(
                    "{name} is listed as {now:?}, which contradicts {beliefs:?}"
                ));
            }
            *beliefs = left;
        }
        Ok(())
    }

    fn host_agrees(&self) -> Result<(), String> {
        let listed =
            self.daemon()
                .registry()
                .list(&Tenant::default(), &Filter::default(), None, 100);
        let world = self.fake.world();
        for one in &listed {
            let alive = world.alive.get(one.id());
            let right = match one.state() {
                State::Running => alive.is_some_and(|alive| alive.motion == Motion::Running),
                State::Frozen => alive.is_some_and(|alive| alive.motion == Motion::Frozen),
                State::Stopped => alive.is_none(),
                State::Damaged => true,
                State::Creating | State::Deleting => false,
            };
            let live = one.live_now().map(|live| live.life);
            let same_life = live.is_none() || live == alive.map(|alive| alive.life);
            if !right || !same_life || !world.records.contains_key(one.id()) {
                return Err(format!(
                    "{} says {:?}, which the host does not",
                    one.id(),
                    one.state()
                ));
            }
        }
        let leaked = |id: &&SandboxId| listed.iter().all(|one| one.id() != *id);
        let leaks: Vec<_> = world
            .records
            .keys()
            .chain(world.alive.keys())
            .filter(|id| leaked(id))
            .collect();
        if !leaks.is_empty() || !world.trash.is_empty() {
            return Err(format!(
                "left on the host: {leaks:?}, trash {:?}",
                world.trash
            ));
        }
        Ok(())
    }

    /// Nothing is stuck: what is not damaged can be used, everything can be deleted, and then the host is empty.
    fn end(mut self) -> Result<(), String> {
        for (of, name) in NAMES.iter().enumerate() {
            for op in [Op::Use(Resume::Auto, 1), Op::Delete, Op::Look] {
                let timed = Timed { op, after: 0 };
                let made = self.all_at_once(of, &[timed], None);
                made.and_then(|()| self.check())
                    .map_err(|why| format!("at the end, {op:?} of {name}: {why}"))?;
            }
            if self.beliefs[of] != Beliefs::from([Belief::Absent]) {
                return Err(format!("{name} was not deleted"));
            }
        }
        let world = self.fake.world();
        let empty = world.records.is_empty() && world.alive.is_empty() && world.trash.is_empty();
        empty
            .then_some(())
            .ok_or_else(|| "the host is not empty".to_owned())
    }

    fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().expect("started again after each kill")
    }
}

/// The label that updates set, zero for none.
fn label(one: &Handle<FakeLive>) -> u8 {
    let labels = one.view().labels;
    labels
        .get(LABEL)
        .map_or(0, |label| label.parse().expect("a number was set"))
}

/// Answers that come one by one, or do not.
#[derive(Clone)]
struct Answers(Arc<Mutex<Vec<Option<Answer>>>>);

impl Answers {
    fn take(&self) -> Vec<Answer> {
        let answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let told = |answer: &Option<_>| answer.clone().unwrap_or(Answer::Unanswered);
        answers.iter().map(told).collect()
    }
}

/// Begins operations, each at its moment.
fn begin(daemon: &Daemon, name: &'static str, ops: &[Timed]) -> (Answers, Vec<JoinHandle<()>>) {
    let answers = Answers(Arc::new(Mutex::new(vec![None; ops.len()])));
    let begin = |(index, timed): (usize, &Timed)| {
        let (answers, late) = (answers.clone(), timed.after);
        let call = daemon.perform(name, timed.op);
        daemon.spawn(async move {
            turns(late.into()).await;
            let answer = call.await;
            answers.0.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(answer);
        })
    };
    let calls = ops.iter().enumerate().map(begin).collect();
    (answers, calls)
}
