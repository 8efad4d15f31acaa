//! What is done to the sandboxes of a sequence, and at what moment.

use std::time::Duration;

use proptest::prelude::*;

use super::super::handle::Resume;

/// Sandboxes of one sequence.
pub(super) const SANDBOXES: usize = 2;
/// Moves of one sequence.
const MOVES: std::ops::Range<usize> = 20..40;
/// Turns of the scheduler that a call may begin late: more than any call takes.
const LATE: u8 = 12;

/// A call to a sandbox, named by its name, or something that happens to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    /// Look at it.
    Look,
    /// Get or create.
    Acquire(Resume),
    /// Spawn in it, which takes so many turns.
    Use(Resume, u8),
    /// Freeze.
    Pause,
    /// Thaw.
    Thaw,
    /// Start.
    Start,
    /// End its processes.
    Stop,
    /// End its processes and remove it.
    Delete,
    /// Change a limit, and set its label to this.
    Update(u8),
    /// Its holder dies.
    HolderDies,
}

impl Op {
    /// Whether it needs the sandbox, so that its idle time begins anew.
    pub(super) fn is_use(self) -> bool {
        matches!(
            self,
            Self::Acquire(_) | Self::Use(..) | Self::Start | Self::Thaw
        )
    }
}

/// An operation that begins after so many turns of the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Timed {
    pub(super) op: Op,
    pub(super) after: u8,
}

/// A change of the host that fails the next time.
pub(super) type Fault = &'static str;

/// One move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Move {
    /// Operations on one sandbox, all at once, while a change may fail.
    Do {
        of: usize,
        ops: Vec<Timed>,
        fault: Option<Fault>,
    },
    /// The same, and the daemon is killed after so many turns.
    Killed {
        of: usize,
        ops: Vec<Timed>,
        after: u8,
        host: HostFate,
    },
    /// Nothing happens for so long.
    Wait(Duration),
    /// A run lives for so long in one of them, and nothing happens in the other.
    Busy(usize, Duration),
}

/// What becomes of the host when the daemon is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HostFate {
    /// It goes on.
    GoesOn,
    /// It reboots.
    Reboots,
}

fn resume() -> impl Strategy<Value = Resume> {
    prop_oneof![3 => Just(Resume::Auto), 1 => Just(Resume::Error)]
}

fn op() -> impl Strategy<Value = Op> {
    // What cannot be left out shrinks to the first one.
    prop_oneof![
        1 => Just(Op::Look),
        5 => resume().prop_map(Op::Acquire),
        4 => (resume(), 0..LATE).prop_map(|(resume, turns)| Op::Use(resume, turns)),
        4 => Just(Op::Pause),
        3 => Just(Op::Thaw),
        2 => Just(Op::Start),
        3 => Just(Op::Stop),
        3 => Just(Op::Delete),
        2 => (1..4u8).prop_map(Op::Update),
        1 => Just(Op::HolderDies),
    ]
}

fn timed() -> impl Strategy<Value = Timed> {
    (op(), 0..LATE).prop_map(|(op, after)| Timed { op, after })
}

fn ops() -> impl Strategy<Value = Vec<Timed>> {
    prop_oneof![
        5 => op().prop_map(|op| vec![Timed { op, after: 0 }]),
        3 => proptest::collection::vec(timed(), 2..=3),
    ]
}

fn fault() -> impl Strategy<Value = Fault> {
    proptest::sample::select(vec![
        "create", "start", "end", "freeze", "thaw", "limit", "write", "put away",
    ])
}

fn host_fate() -> impl Strategy<Value = HostFate> {
    prop_oneof![4 => Just(HostFate::GoesOn), 1 => Just(HostFate::Reboots)]
}

/// Too short for the idle policy, or longer than it waits before a freeze, or before a stop.
fn time() -> impl Strategy<Value = Duration> {
    proptest::sample::select(vec![
        Duration::from_secs(50),
        Duration::from_secs(700),
        Duration::from_secs(4000),
    ])
}

fn movement() -> impl Strategy<Value = Move> {
    let of = 0..SANDBOXES;
    let no_fault = (of.clone(), ops()).prop_map(|(of, ops)| Move::Do {
        of,
        ops,
        fault: None,
    });
    let with_fault = (of.clone(), ops(), fault()).prop_map(|(of, ops, fault)| Move::Do {
        of,
        ops,
        fault: Some(fault),
    });
    let killed =
        (of.clone(), ops(), 0..2 * LATE, host_fate()).prop_map(|(of, ops, after, host)| {
            Move::Killed {
                of,
                ops,
                after,
                host,
            }
        });
    let busy = (of, time()).prop_map(|(of, time)| Move::Busy(of, time));
    prop_oneof![16 => no_fault, 4 => with_fault, 2 => killed, 1 => time().prop_map(Move::Wait), 1 => busy]
}

/// A sequence.
pub(super) fn sequence() -> impl Strategy<Value = Vec<Move>> {
    proptest::collection::vec(movement(), MOVES)
}
