//! What may be true of a sandbox, and which of it an answer leaves.

use std::collections::BTreeSet;

use lodge_proto::v1::SandboxState;

use super::step::{Answer, Done, Step};

/// Reason code of calls to what is not there.
const NOT_FOUND: &str = "SANDBOX_NOT_FOUND";
/// Reason code of calls that need processes and may not start them.
const NOT_RUNNING: &str = "SANDBOX_NOT_RUNNING";
/// Reason code of runs whose sandbox ended while PID 1 was asked for them.
const JUST_STOPPED: &str = "SANDBOX_STOPPED";
/// Reason code of calls that meet a delete.
const BEING_DELETED: &str = "SANDBOX_IS_BEING_DELETED";

/// What a sandbox that is there does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// It has a holder.
    Running,
    /// It has one, and gets no CPU.
    Frozen,
    /// It has files alone.
    Stopped,
}

impl Phase {
    /// As the API says it.
    pub fn state(self) -> SandboxState {
        match self {
            Self::Running => SandboxState::Running,
            Self::Frozen => SandboxState::Frozen,
            Self::Stopped => SandboxState::Stopped,
        }
    }
}

/// One thing that may be true of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Belief {
    /// There is none of this name.
    Absent,
    /// There is one.
    There {
        /// Its id, where the caller was told it.
        id: Option<String>,
        /// What it does.
        phase: Phase,
        /// The numbers in its file.
        numbers: Vec<u32>,
        /// Processes that runs left behind and that live.
        left: usize,
    },
}

/// What else was going on when a step was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Company {
    /// A stop or a delete: it may end a run in its middle, or come between a start and what needed it.
    pub ending: bool,
    /// A create or a delete: a call may meet a sandbox that is half made or half gone.
    pub passing: bool,
    /// A run: it has processes of its own.
    pub running: bool,
    /// The same delete once more: both did it.
    pub deleting: bool,
}

impl Company {
    /// Nothing.
    pub const NONE: Self = Self {
        ending: false,
        passing: false,
        running: false,
        deleting: false,
    };

    /// That of one of several steps done at once.
    pub fn of(steps: &[Step]) -> Self {
        let any = |wanted: &[Step]| steps.iter().any(|step| wanted.contains(step));
        Self {
            ending: any(&[Step::Stop, Step::Delete]),
            passing: any(&[Step::Acquire, Step::Delete]),
            running: steps.iter().any(|step| is_run(*step)),
            deleting: steps.iter().all(|step| *step == Step::Delete),
        }
    }
}

/// Everything that may be true of a sandbox. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beliefs(BTreeSet<Belief>);

impl Default for Beliefs {
    fn default() -> Self {
        Self([Belief::Absent].into())
    }
}

impl Beliefs {
    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &Belief> {
        self.0.iter()
    }

    /// Whether it may be there.
    pub fn may_be_there(&self) -> bool {
        self.0.iter().any(|belief| *belief != Belief::Absent)
    }

    /// Whether so many processes may be there once every run has gone.
    pub fn may_have_left(&self, count: usize) -> bool {
        self.0.iter().any(|belief| match belief {
            Belief::Absent => count == 0,
            Belief::There { left, .. } => count == *left,
        })
    }

    /// After this step was done alone. `None` if nothing that was believed explains its answer.
    #[must_use]
    pub fn after(&self, done: &Done) -> Option<Self> {
        Self::some(self.each(|belief| explain(belief, done, Company::NONE)))
    }

    /// After these steps were done at once, in whatever order they took effect.
    #[must_use]
    pub fn after_both(&self, a: &Done, b: &Done) -> Option<Self> {
        let mut all = BTreeSet::new();
        let company = Company::of(&[a.step, b.step]);
        for (first, second) in [(a, b), (b, a)] {
            let halfway = Self(self.each(|belief| explain(belief, first, company)));
            all.extend(halfway.each(|belief| explain(belief, second, company)));
            all.extend(self.after_a_late_look(first, second, company));
        }
        // An acquire that creates does two things, and a pause may come between them: its start thaws it again.
        let mut steps = [a.step, b.step].into_iter();
        if steps.clone().any(|step| step == Step::Acquire) && steps.any(|step| step == Step::Pause)
        {
            all = Self(all).maybe_thawed().0;
        }
        Self::some(all)
    }

    /// The sandbox that the first of two answers shows is looked at when its own step is done: it may be as the second one,
    /// which came right after, has made it.
    fn after_a_late_look(&self, first: &Done, second: &Done, company: Company) -> BTreeSet<Belief> {
        let (Answer::Is(shown), Some(own)) = (&first.answer, made_by(first.step)) else {
            return BTreeSet::new();
        };
        let first = Done {
            step: first.step,
            answer: Answer::Is(own.state()),
        };
        let halfway = Self(self.each(|belief| explain(belief, &first, company)));
        let mut after = halfway.each(|belief| explain(belief, second, company));
        after.retain(
            |belief| matches!(belief, Belief::There { phase, .. } if phase.state() == *shown),
        );
        after
    }

    /// After somebody thawed it, if it was frozen then.
    #[must_use]
    pub fn maybe_thawed(&self) -> Self {
        let mut all = self.0.clone();
        all.extend(self.each(|belief| match effect(belief, Step::Resume) {
            Ok(after) => vec![after],
            Err(_) => Vec::new(),
        }));
        Self(all)
    }

    /// After it was seen so in a list, or was not in it.
    #[must_use]
    pub fn seen(&self, seen: Option<(&str, SandboxState)>) -> Option<Self> {
        Self::some(self.each(|belief| match (belief, seen) {
            (Belief::Absent, None) => vec![belief.clone()],
            (
                Belief::There {
                    id,
                    phase,
                    numbers,
                    left,
                },
                Some((now, state)),
            ) if phase.state() == state && id.as_deref().is_none_or(|id| id == now) => {
                vec![Belief::There {
                    id: Some(now.to_owned()),
                    phase: *phase,
                    numbers: numbers.clone(),
                    left: *left,
                }]
            }
            _ => Vec::new(),
        }))
    }

    fn each(&self, next: impl Fn(&Belief) -> Vec<Belief>) -> BTreeSet<Belief> {
        self.0.iter().flat_map(next).collect()
    }

    fn some(all: BTreeSet<Belief>) -> Option<Self> {
        (!all.is_empty()).then_some(Self(all))
    }
}

/// What may be true after a step with this answer, if `before` was. Empty if that cannot be.
fn explain(before: &Belief, done: &Done, company: Company) -> Vec<Belief> {
    let unchanged = || vec![before.clone()];
    match &done.answer {
        Answer::Unanswered => half_done(before, done.step),
        // Neither what it was nor what it becomes: it is on its way, by the other call.
        Answer::Is(SandboxState::Creating | SandboxState::Deleting) if company.passing => {
            unchanged()
        }
        // It may have made the one that it met on its way out.
        Answer::Refused(reason)
            if company.passing && reason == BEING_DELETED && done.step == Step::Acquire =>
        {
            half_done(before, done.step)
        }
        Answer::Refused(reason) if company.passing && reason == BEING_DELETED => unchanged(),
        // It met one that ends: before it was asked, or while it was.
        Answer::Refused(reason)
            if company.ending
                && [NOT_RUNNING, JUST_STOPPED].contains(&reason.as_str())
                && is_run(done.step) =>
        {
            unchanged()
        }
        // Who needs it starts it, finds it frozen, and thaws it.
        Answer::Is(SandboxState::Frozen) if done.step == Step::Pause && company.running => {
            match effect(before, Step::Resume) {
                Ok(thawed) => effect(before, Step::Pause)
                    .into_iter()
                    .chain([thawed])
                    .collect(),
                Err(_) => Vec::new(),
            }
        }
        // Who acquires it needs it, and starts it again.
        Answer::Is(SandboxState::Stopped) if done.step == Step::Stop && company.passing => {
            match effect(before, Step::Stop) {
                Ok(stopped) => effect(&stopped, Step::Start)
                    .into_iter()
                    .chain([stopped])
                    .collect(),
                Err(_) => Vec::new(),
            }
        }
        Answer::Deleted if company.deleting && *before == Belief::Absent => unchanged(),
        Answer::Cut if company.ending && is_run(done.step) => half_done(before, done.step),
        Answer::Count(count) if company.running || company.ending => match before {
            Belief::There { left, .. } if company.running || count <= left => unchanged(),
            _ => Vec::new(),
        },
        Answer::Refused(reason) => match effect(before, done.step) {
            Err(expected) if expected == reason => unchanged(),
            _ => Vec::new(),
        },
        answer => match effect(before, done.step) {
            Ok(after) => told(before, after, done.step, answer).into_iter().collect(),
            Err(_) => Vec::new(),
        },
    }
}

fn is_run(step: Step) -> bool {
    matches!(step, Step::Write(_) | Step::Read | Step::Leave)
}

/// What a step makes of a sandbox, or why it is refused.
fn effect(before: &Belief, step: Step) -> Result<Belief, &'static str> {
    let Belief::There {
        id,
        phase,
        numbers,
        left,
    } = before
    else {
        return match step {
            Step::Acquire => Ok(Belief::There {
                id: None,
                phase: Phase::Running,
                numbers: Vec::new(),
                left: 0,
            }),
            _ => Err(NOT_FOUND),
        };
    };
    let (mut phase, mut numbers, mut left) = (*phase, numbers.clone(), *left);
    match step {
        Step::Get | Step::Processes => {}
        Step::Acquire | Step::Start | Step::Read => phase = Phase::Running,
        Step::Write(number) => {
            phase = Phase::Running;
            numbers.push(number);
        }
        Step::Leave => {
            phase = Phase::Running;
            left += 1;
        }
        Step::Pause | Step::Resume if phase == Phase::Stopped => return Err(NOT_RUNNING),
        Step::Pause => phase = Phase::Frozen,
        Step::Resume => phase = Phase::Running,
        Step::Stop => (phase, left) = (Phase::Stopped, 0),
        Step::Delete => return Ok(Belief::Absent),
    }
    Ok(Belief::There {
        id: id.clone(),
        phase,
        numbers,
        left,
    })
}

/// `after`, if the answer says just that.
fn told(before: &Belief, after: Belief, step: Step, answer: &Answer) -> Option<Belief> {
    let Belief::There {
        id,
        phase,
        numbers,
        left,
    } = &after
    else {
        return (*answer == Answer::Deleted).then_some(after);
    };
    let right = match (step, answer) {
        (Step::Acquire, Answer::Acquired { id: now, created }) => {
            let same = id.as_ref().is_none_or(|id| id == now);
            let as_expected = *created == (*before == Belief::Absent);
            return (same && as_expected).then(|| Belief::There {
                id: Some(now.clone()),
                phase: *phase,
                numbers: numbers.clone(),
                left: *left,
            });
        }
        (Step::Read, Answer::Numbers(read)) => read == numbers,
        (Step::Write(_) | Step::Leave, Answer::Ran) => true,
        (Step::Processes, Answer::Count(count)) => count == left,
        (Step::Get | Step::Pause | Step::Resume | Step::Start | Step::Stop, Answer::Is(state)) => {
            *state == phase.state()
        }
        _ => false,
    };
    right.then_some(after)
}

/// What may be true when a step was broken off anywhere: nothing was done, or a part of it, or all.
fn half_done(before: &Belief, step: Step) -> Vec<Belief> {
    let mut all = vec![before.clone()];
    let Ok(after) = effect(before, step) else {
        return all;
    };
    let mut phases = Vec::new();
    for belief in [before, &after] {
        if let Belief::There { phase, .. } = belief {
            phases.push(*phase);
        }
    }
    // A create that got its record has files before it has processes; a delete ends the processes before the files.
    if matches!(step, Step::Acquire | Step::Delete | Step::Stop) {
        phases.push(Phase::Stopped);
    }
    for belief in [before, &after] {
        for now in &phases {
            let mut belief = belief.clone();
            if let Belief::There { phase, left, .. } = &mut belief {
                *phase = *now;
                *left = if *now == Phase::Stopped { 0 } else { *left };
            }
            all.push(belief);
        }
    }
    all.push(after);
    all
}

/// What a step makes of a sandbox whose state its answer shows.
fn made_by(step: Step) -> Option<Phase> {
    match step {
        Step::Start | Step::Resume => Some(Phase::Running),
        Step::Pause => Some(Phase::Frozen),
        Step::Stop => Some(Phase::Stopped),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(step: Step, answer: Answer) -> Done {
        Done { step, answer }
    }

    fn created() -> Done {
        done(
            Step::Acquire,
            Answer::Acquired {
                id: "one".into(),
                created: true,
            },
        )
    }

    #[test]
    fn an_answer_may_show_what_came_right_after_and_nothing_else() {
        let running = Beliefs::default().after(&created()).expect("created");
        let frozen = Answer::Is(SandboxState::Frozen);
        let pause = done(Step::Pause, frozen.clone());
        let frozen_then = running.after(&pause).expect("frozen");
        let start = done(Step::Start, frozen);
        let after = frozen_then.after_both(&pause, &start).expect("explained");
        assert_eq!(after, frozen_then);
        let stopped = done(Step::Start, Answer::Is(SandboxState::Stopped));
        assert!(frozen_then.after_both(&pause, &stopped).is_none());
        assert!(frozen_then.after(&start).is_none());
    }

    #[test]
    fn what_was_written_is_read() {
        let beliefs = Beliefs::default().after(&created()).expect("created");
        let wrote = beliefs.after(&done(Step::Write(7), Answer::Ran));
        let wrote = wrote.expect("written");
        assert!(
            wrote
                .after(&done(Step::Read, Answer::Numbers(vec![7])))
                .is_some()
        );
        assert!(
            wrote
                .after(&done(Step::Read, Answer::Numbers(vec![])))
                .is_none()
        );
    }

    #[test]
    fn an_unanswered_write_may_have_happened_once() {
        let beliefs = Beliefs::default().after(&created()).expect("created");
        let maybe = beliefs.after(&done(Step::Write(7), Answer::Unanswered));
        let maybe = maybe.expect("either");
        for (read, possible) in [(vec![], true), (vec![7], true), (vec![7, 7], false)] {
            let after = maybe.after(&done(Step::Read, Answer::Numbers(read)));
            assert_eq!(after.is_some(), possible);
        }
    }

    #[test]
    fn what_is_left_is_what_runs_left() {
        let beliefs = Beliefs::default().after(&created()).expect("created");
        assert!(beliefs.may_have_left(0) && !beliefs.may_have_left(1));
        let left = beliefs.after(&done(Step::Leave, Answer::Ran));
        let left = left.expect("left");
        assert!(left.may_have_left(1) && !left.may_have_left(0) && !left.may_have_left(2));
        let maybe = left.after(&done(Step::Stop, Answer::Unanswered));
        let maybe = maybe.expect("either");
        assert!(maybe.may_have_left(0) && maybe.may_have_left(1) && !maybe.may_have_left(2));
    }

    #[test]
    fn of_two_acquires_at_once_one_creates() {
        let found = done(
            Step::Acquire,
            Answer::Acquired {
                id: "one".into(),
                created: false,
            },
        );
        let nothing = Beliefs::default();
        assert!(nothing.after_both(&created(), &found).is_some());
        assert!(nothing.after_both(&created(), &created()).is_none());
        assert!(nothing.after_both(&found, &found).is_none());
    }

    #[test]
    fn a_lost_sandbox_is_a_contradiction() {
        let beliefs = Beliefs::default().after(&created()).expect("created");
        assert!(beliefs.seen(None).is_none());
        assert!(beliefs.seen(Some(("one", SandboxState::Running))).is_some());
        assert!(beliefs.seen(Some(("two", SandboxState::Running))).is_none());
    }
}
