//! What may be true of a sandbox. Calls at once may take effect in any order, a call that a kill cut off in part: so there
//! is more than one thing to believe, until what is seen rules it out.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::handle::Resume;
use super::super::id::SandboxId;
use super::super::state::State;
use super::moves::{Fault, Op};

/// What a sandbox that is there does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Running,
    Frozen,
    Stopped,
    /// It can be deleted.
    Damaged,
    /// Damaged too, but its end can be tried again.
    Unended,
}

impl Phase {
    /// As the registry says it.
    pub(super) fn state(self) -> State {
        match self {
            Self::Running => State::Running,
            Self::Frozen => State::Frozen,
            Self::Stopped => State::Stopped,
            Self::Damaged | Self::Unended => State::Damaged,
        }
    }
}

/// One thing that may be true of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Belief {
    /// There is none of this name.
    Absent,
    /// There is one.
    There(There),
}

/// A sandbox that is there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct There {
    /// Its id, where somebody was told it.
    id: Option<SandboxId>,
    phase: Phase,
    /// Its label, zero for none.
    label: u8,
    /// A caller paused it: its idle policy waits.
    held: bool,
    /// How long it has not been used, at least and at most: a kill may have it forget a part.
    unused: (Duration, Duration),
}

/// When the policy freezes.
pub(super) const FREEZE_AFTER: Duration = Duration::from_secs(600);
/// When it stops.
pub(super) const STOP_AFTER: Duration = Duration::from_secs(3600);
/// How much of the time without use a killed daemon has not noted, at most.
const NOT_NOTED: Duration = Duration::from_secs(3600);

/// Everything that may be true. Empty is a contradiction.
pub(super) type Beliefs = BTreeSet<Belief>;

/// What came of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// The sandbox's id, and whether it was created.
    Acquired(SandboxId, bool),
    /// It was done.
    Done,
    /// It had leave to spawn, and the processes ended under it.
    Cut,
    /// Refused, for the reason of this code.
    Refused(&'static str),
    /// Killed before it was told.
    Unanswered,
}

/// An operation and what came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Done {
    pub(super) op: Op,
    pub(super) answer: Answer,
}

/// What else there was when an operation was done.
#[derive(Debug, Clone, Copy)]
pub(super) struct Company<'a> {
    ops: &'a [Done],
    fault: Option<Fault>,
}

impl Company<'_> {
    fn has(&self, wanted: &[Op]) -> bool {
        self.ops.iter().any(|done| wanted.contains(&done.op))
    }

    fn uses(&self) -> bool {
        self.ops.iter().any(|done| done.op.is_use())
    }

    /// Whether one that needs it may have got as far as to thaw it, and no further.
    fn breaks_off_a_thaw(&self) -> bool {
        let unanswered = |done: &Done| done.op.is_use() && done.answer == Answer::Unanswered;
        self.fault == Some("thaw") || self.ops.iter().any(unanswered)
    }
}

/// What may be true after these operations, in whatever order they took effect, while `fault` was met by one of them.
pub(super) fn after(before: &Beliefs, done: &[Done], fault: Option<Fault>) -> Beliefs {
    let company = Company { ops: done, fault };
    let mut all = Beliefs::new();
    for order in orders(done.len()) {
        let mut beliefs = before.clone();
        for index in order {
            beliefs = beliefs
                .iter()
                .flat_map(|belief| explain(belief, &done[index], company))
                .collect();
        }
        all.extend(beliefs);
    }
    all
}

/// After the daemon was killed and the next one has taken up what it left: what was only in its memory is forgotten.
pub(super) fn after_kill(before: &Beliefs, rebooted: bool) -> Beliefs {
    let mut all = Beliefs::new();
    for belief in before {
        let Belief::There(there) = belief else {
            all.insert(Belief::Absent);
            continue;
        };
        let mut there = there.clone();
        there.unused.0 = there.unused.0.saturating_sub(NOT_NOTED);
        if rebooted {
            all.insert(Belief::There(there.in_phase(Phase::Stopped)));
        } else if matches!(there.phase, Phase::Damaged | Phase::Unended) {
            // What its processes do is looked at anew, and whether a caller paused them was lost with their state.
            for phase in [Phase::Running, Phase::Frozen, Phase::Stopped] {
                for held in [false, phase == Phase::Frozen] {
                    let mut there = there.in_phase(phase);
                    there.held = held;
                    all.insert(Belief::There(there));
                }
            }
        } else {
            all.insert(Belief::There(there));
        }
    }
    all
}

/// After so long without anything: the idle policy has done what was due.
pub(super) fn after_waiting(before: &Beliefs, time: Duration) -> Beliefs {
    let waited = |belief: &Belief| match belief {
        Belief::There(there) if !there.held => there.after_waiting(time),
        other => vec![other.clone()],
    };
    before.iter().flat_map(waited).collect()
}

/// After it was listed so, with this label, or was not listed.
pub(super) fn seen(before: &Beliefs, now: Option<(&SandboxId, State, u8)>) -> Beliefs {
    let fitting = |belief: &Belief| match (belief, now) {
        (Belief::Absent, None) => Some(Belief::Absent),
        (Belief::There(there), Some((now, state, label))) => {
            let same = there.id.as_ref().is_none_or(|id| id == now);
            let mut there = there.clone();
            there.id = Some(now.clone());
            let fits = same && there.phase.state() == state && there.label == label;
            fits.then_some(Belief::There(there))
        }
        _ => None,
    };
    before.iter().filter_map(fitting).collect()
}

impl There {
    fn in_phase(&self, phase: Phase) -> Self {
        Self {
            phase,
            held: self.held && phase == Phase::Frozen,
            ..self.clone()
        }
    }

    /// Just now used.
    fn used(&self) -> Self {
        Self {
            unused: (Duration::ZERO, Duration::ZERO),
            ..self.clone()
        }
    }

    fn after_waiting(&self, time: Duration) -> Vec<Belief> {
        let (least, most) = (self.unused.0 + time, self.unused.1 + time);
        let between = [FREEZE_AFTER, STOP_AFTER].into_iter();
        let between = between.filter(|at| (least..=most).contains(at));
        let possible = [least, most].into_iter().chain(between);
        let waited = possible.map(|unused| {
            let phase = match self.phase {
                Phase::Running | Phase::Frozen if unused >= STOP_AFTER => Phase::Stopped,
                Phase::Running if unused >= FREEZE_AFTER => Phase::Frozen,
                phase => phase,
            };
            let mut there = self.in_phase(phase);
            there.unused = (least, most);
            Belief::There(there)
        });
        waited.collect()
    }
}

/// Every order of so many things.
fn orders(count: usize) -> Vec<Vec<usize>> {
    (0..count).fold(vec![Vec::new()], |shorter, next| {
        let insert = |order: &Vec<usize>| {
            let order = order.clone();
            (0..=order.len()).map(move |at| {
                let mut longer = order.clone();
                longer.insert(at, next);
                longer
            })
        };
        shorter.iter().flat_map(insert).collect()
    })
}

fn explain(before: &Belief, done: &Done, company: Company<'_>) -> Vec<Belief> {
    let unchanged = || vec![before.clone()];
    let passing = company.has(&[Op::Delete]);
    match &done.answer {
        Answer::Unanswered => unanswered(before, done.op, company),
        Answer::Cut => match company.has(&[Op::Stop, Op::Delete, Op::HolderDies]) {
            true => half_done(before, done.op),
            false => Vec::new(),
        },
        Answer::Refused("FAKE_FAILURE") if company.fault.is_some() => {
            let mut all = failed(before, done.op, company.fault);
            // It started it, found it paused, and could not thaw it.
            if company.fault == Some("thaw") && company.has(&[Op::Pause]) {
                all.extend(half_done(before, done.op));
            }
            all
        }
        // What is left of it could not be ended, of which nobody is told.
        Answer::Done if done.op == Op::HolderDies && company.fault == Some("end") => {
            let mut all: Vec<_> = effect(before, done.op).into_iter().collect();
            all.extend(in_phase(before, Phase::Unended));
            all
        }
        // It met a sandbox that was on its way out.
        Answer::Refused("SANDBOX_IS_BEING_DELETED" | "SANDBOX_NOT_FOUND") if passing => {
            half_done(before, done.op)
        }
        // It met one that was being made.
        Answer::Refused("SANDBOX_CREATING") if company.ops.len() > 1 => unchanged(),
        // It started it, and then others came between.
        Answer::Refused("SANDBOX_IS_FROZEN") if company.has(&[Op::Pause]) => {
            half_done(before, done.op)
        }
        // Or saw one.
        Answer::Done if done.op == Op::Look && company.ops.len() > 1 => unchanged(),
        // Both did it.
        Answer::Done
            if done.op == Op::Delete && *before == Belief::Absent && company.ops.len() > 1 =>
        {
            unchanged()
        }
        // It started one, and met it again when its end had failed.
        Answer::Refused("SANDBOX_DAMAGED")
            if matches!(company.fault, Some("end" | "put away")) && done.op.is_use() =>
        {
            half_done(before, done.op)
        }
        // It met one whose holder died under it, or started it, and it died then.
        Answer::Refused("SANDBOX_STOPPED") if company.has(&[Op::HolderDies]) => {
            half_done(before, done.op)
        }
        answer => match (effect(before, done.op), answer) {
            (Err(expected), Answer::Refused(reason)) if expected == *reason => {
                refused(before, done.op)
            }
            (Ok(after), Answer::Done) => {
                let mut all = met_by_use(&after, done.op, company);
                all.push(after);
                all
            }
            (Ok(Belief::There(there)), Answer::Acquired(now, created)) => {
                let same = there.id.as_ref().is_none_or(|id| id == now);
                let as_expected = *created == (*before == Belief::Absent);
                let there = There {
                    id: Some(now.clone()),
                    ..there
                };
                (same && as_expected)
                    .then_some(Belief::There(there))
                    .into_iter()
                    .collect()
            }
            _ => Vec::new(),
        },
    }
}

/// What an operation makes of a sandbox, or why it is refused.
fn effect(before: &Belief, op: Op) -> Result<Belief, &'static str> {
    let Belief::There(there) = before else {
        return match op {
            Op::Acquire(_) => Ok(Belief::There(There {
                id: None,
                phase: Phase::Running,
                label: 0,
                held: false,
                unused: (Duration::ZERO, Duration::ZERO),
            })),
            Op::HolderDies => Ok(Belief::Absent),
            _ => Err("SANDBOX_NOT_FOUND"),
        };
    };
    let after = match (op, there.phase) {
        (Op::Delete, _) => return Ok(Belief::Absent),
        (Op::Look, _) => there.clone(),
        (Op::Stop | Op::HolderDies, Phase::Damaged) => there.clone(),
        (Op::HolderDies, Phase::Unended) => there.clone(),
        (_, Phase::Damaged) => return Err("SANDBOX_DAMAGED"),
        (Op::Pause | Op::Thaw | Op::Update(_), Phase::Unended) => return Err("SANDBOX_DAMAGED"),
        (Op::Update(label), _) => There {
            label,
            ..there.clone()
        },
        (Op::Stop | Op::HolderDies, _) => there.in_phase(Phase::Stopped),
        (Op::Acquire(Resume::Error) | Op::Use(Resume::Error, _), Phase::Frozen) => {
            return Err("SANDBOX_IS_FROZEN");
        }
        (Op::Acquire(_) | Op::Use(..) | Op::Start, _) => there.in_phase(Phase::Running).used(),
        (Op::Pause | Op::Thaw, Phase::Stopped) => return Err("SANDBOX_NOT_RUNNING"),
        (Op::Pause, _) => There {
            held: true,
            ..there.in_phase(Phase::Frozen)
        },
        (Op::Thaw, _) => there.in_phase(Phase::Running).used(),
    };
    Ok(Belief::There(after))
}

/// A call that was refused may have been use all the same.
fn refused(before: &Belief, op: Op) -> Vec<Belief> {
    let mut all = vec![before.clone()];
    if let (Belief::There(there), true) = (before, op.is_use()) {
        all.push(Belief::There(there.used()));
    }
    all
}

/// A change of the host failed: it is as it was, or nobody knows how it is.
fn failed(before: &Belief, op: Op, fault: Option<Fault>) -> Vec<Belief> {
    let mut all = refused(before, op);
    let phase = match (before, fault) {
        (_, Some("end")) => Phase::Unended,
        (_, Some("put away")) => Phase::Damaged,
        // It was ended after all, and then not started.
        (Belief::There(there), _) if there.phase == Phase::Unended => Phase::Stopped,
        _ => return all,
    };
    let changed = all.iter().filter_map(|belief| in_phase(belief, phase));
    all.extend(changed.collect::<Vec<_>>());
    all
}

/// What may be true where an operation was broken off.
fn half_done(before: &Belief, op: Op) -> Vec<Belief> {
    let mut all = refused(before, op);
    let Ok(after) = effect(before, op) else {
        return all;
    };
    if matches!(op, Op::Acquire(_) | Op::Delete | Op::Stop) {
        all.extend(in_phase(before, Phase::Stopped));
        all.extend(in_phase(&after, Phase::Stopped));
    }
    all.push(after);
    // Who uses it or pauses it changes first what is known of its idle time.
    if let Belief::There(there) = before {
        let held = |held| {
            Belief::There(There {
                held,
                ..there.clone()
            })
        };
        if there.phase == Phase::Frozen && (op.is_use() || op == Op::Pause) {
            all.extend([held(false), held(true)]);
        }
    }
    all
}

/// What may be true where a kill cut an operation off.
fn unanswered(before: &Belief, op: Op, company: Company<'_>) -> Vec<Belief> {
    let mut all = half_done(before, op);
    if let Ok(after) = effect(before, op) {
        all.extend(met_by_use(&after, op, company));
    }
    all
}

/// What else may be true where a pause came while others need it: who has started it finds it frozen and thaws it, or is
/// cut off once it has taken note that no caller holds it any longer.
fn met_by_use(after: &Belief, op: Op, company: Company<'_>) -> Vec<Belief> {
    let mut all = Vec::new();
    if let (Belief::There(there), Op::Pause) = (after, op) {
        if company.uses() {
            all.extend(in_phase(after, Phase::Running));
        }
        if company.breaks_off_a_thaw() {
            all.push(Belief::There(There {
                held: false,
                ..there.clone()
            }));
        }
    }
    all
}

fn in_phase(belief: &Belief, phase: Phase) -> Option<Belief> {
    match belief {
        Belief::Absent => None,
        Belief::There(there) => Some(Belief::There(there.in_phase(phase))),
    }
}
