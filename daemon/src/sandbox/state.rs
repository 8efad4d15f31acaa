//! What is allowed in which state: one pure function, tested over all pairs. It does nothing itself.

/// What a sandbox is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Being made; it has no files that anybody could miss.
    Creating,
    /// It has a holder.
    Running,
    /// It has a holder, and no CPU.
    Frozen,
    /// It has files and no processes.
    Stopped,
    /// It cannot be used; it can be deleted.
    Damaged,
    /// Being removed; its name is free already.
    Deleting,
}

/// What is asked of a sandbox, or what happened to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Its files and its record are there, and its holder runs.
    Created,
    /// It is needed.
    Start,
    /// It is needed, but not to be thawed for that.
    Enter,
    /// Its processes are to end.
    Stop,
    /// Its processes are to end, which failed before.
    EndAgain,
    /// It is to go.
    Delete,
    /// It is to get no CPU.
    Freeze,
    /// It is to get CPU again.
    Thaw,
    /// Its limits, labels or policy are to change.
    Update,
    /// Its holder has died.
    HolderDied,
    /// Nobody has used it for so long that it is to be frozen.
    IdleFreeze,
    /// Nobody has used it for so long that it is to be stopped.
    IdleStop,
    /// Nobody has used it for so long that it is to be deleted.
    IdleDelete,
}

/// What follows from an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Do what it takes to get there.
    Go(State),
    /// It is so already.
    Stay,
    /// Not in this state.
    Refuse(Refusal),
}

/// Why an event is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It is still being made.
    NotYetCreated,
    /// It has no processes.
    NotRunning,
    /// It is frozen, and was not to be thawed.
    IsFrozen,
    /// It is damaged.
    IsDamaged,
    /// It is being removed.
    IsBeingDeleted,
    /// It was made before: an event that can happen only once.
    AlreadyCreated,
}

/// What follows from `event` in `state`.
pub fn decide(state: State, event: Event) -> Decision {
    use Decision::{Go, Refuse, Stay};
    match (state, event) {
        // Promise 7: delete works from every state.
        (State::Deleting, Event::Delete) => Stay,
        (_, Event::Delete) => Go(State::Deleting),

        // Nobody asks for these, so that nobody is refused: they happen where they can.
        (State::Running | State::Frozen, Event::HolderDied | Event::IdleStop) => Go(State::Stopped),
        (State::Creating, Event::HolderDied) => Go(State::Stopped),
        (State::Running, Event::IdleFreeze) => Go(State::Frozen),
        (State::Running | State::Frozen | State::Stopped, Event::IdleDelete) => Go(State::Deleting),
        // A damaged sandbox above all: what is in it may be wanted yet.
        (_, Event::HolderDied | Event::IdleFreeze | Event::IdleStop | Event::IdleDelete) => Stay,

        (State::Creating, Event::Created) => Go(State::Running),
        (State::Deleting, _) => Refuse(Refusal::IsBeingDeleted),
        (_, Event::Created) => Refuse(Refusal::AlreadyCreated),

        // The create that is under way starts it.
        (State::Creating, Event::Start | Event::Enter) => Stay,
        (State::Creating, _) => Refuse(Refusal::NotYetCreated),

        (State::Damaged, Event::Stop) => Stay,
        (State::Damaged, Event::EndAgain) => Go(State::Stopped),
        (State::Damaged, _) => Refuse(Refusal::IsDamaged),

        (State::Running, Event::Start | Event::Enter | Event::Thaw) => Stay,
        (State::Running | State::Frozen | State::Stopped, Event::Update) => Stay,
        (State::Running, Event::Freeze) => Go(State::Frozen),

        (State::Frozen, Event::Start | Event::Thaw) => Go(State::Running),
        (State::Frozen, Event::Enter) => Refuse(Refusal::IsFrozen),
        (State::Frozen, Event::Freeze) => Stay,

        (State::Running | State::Frozen, Event::Stop | Event::EndAgain) => Go(State::Stopped),

        (State::Stopped, Event::Start | Event::Enter) => Go(State::Running),
        (State::Stopped, Event::Stop | Event::EndAgain) => Stay,
        (State::Stopped, Event::Freeze | Event::Thaw) => Refuse(Refusal::NotRunning),
    }
}

#[cfg(test)]
mod tests {
    use super::Decision::{Go, Refuse, Stay};
    use super::Refusal::{
        AlreadyCreated, IsBeingDeleted, IsDamaged, IsFrozen, NotRunning, NotYetCreated,
    };
    use super::State::{Creating, Damaged, Deleting, Frozen, Running, Stopped};
    use super::*;

    const STATES: [State; 6] = [Creating, Running, Frozen, Stopped, Damaged, Deleting];

    /// One row per event, one column per state in the order of `STATES`.
    const EXPECTED: [(Event, [Decision; 6]); 13] = [
        (
            Event::Created,
            [
                Go(Running),
                Refuse(AlreadyCreated),
                Refuse(AlreadyCreated),
                Refuse(AlreadyCreated),
                Refuse(AlreadyCreated),
                Refuse(IsBeingDeleted),
            ],
        ),
        (
            Event::Start,
            [
                Stay,
                Stay,
                Go(Running),
                Go(Running),
                Refuse(IsDamaged),
                Refuse(IsBeingDeleted),
            ],
        ),
        (
            Event::Enter,
            [
                Stay,
                Stay,
                Refuse(IsFrozen),
                Go(Running),
                Refuse(IsDamaged),
                Refuse(IsBeingDeleted),
            ],
        ),
        (
            Event::Stop,
            [
                Refuse(NotYetCreated),
                Go(Stopped),
                Go(Stopped),
                Stay,
                Stay,
                Refuse(IsBeingDeleted),
            ],
        ),
        (
            Event::EndAgain,
            [
                Refuse(NotYetCreated),
                Go(Stopped),
                Go(Stopped),
                Stay,
                Go(Stopped),
                Refuse(IsBeingDeleted),
            ],
        ),
        (
            Event::Delete,
            [
                Go(Deleting),
                Go(Deleting),
                Go(Deleting),
                Go(Deleting),
                Go(Deleting),
                Stay,
            ],
        ),
        (
            Event::Freeze,
            [
                Refuse(NotYetCreated),
                Go(Frozen),
                Stay,
                Refuse(NotRunning),
                Refuse(IsDamaged),
                Refuse(IsBeingDeleted),
            ],
        ),
        (
            Event::Thaw,
            [
                Refuse(NotYetCreated),
                Stay,
                Go(Running),
                Refuse(NotRunning),
                Refuse(IsDamaged),
                Refuse(IsBeingDeleted),
            ],
        ),
        (
            Event::Update,
            [
                Refuse(NotYetCreated),
                Stay,
                Stay,
                Stay,
                Refuse(IsDamaged),
                Refuse(IsBeingDeleted),
            ],
        ),
        (
            Event::HolderDied,
            [Go(Stopped), Go(Stopped), Go(Stopped), Stay, Stay, Stay],
        ),
        (
            Event::IdleFreeze,
            [Stay, Go(Frozen), Stay, Stay, Stay, Stay],
        ),
        (
            Event::IdleStop,
            [Stay, Go(Stopped), Go(Stopped), Stay, Stay, Stay],
        ),
        (
            Event::IdleDelete,
            [Stay, Go(Deleting), Go(Deleting), Go(Deleting), Stay, Stay],
        ),
    ];

    #[test]
    fn every_pair_of_state_and_event_is_decided_as_written() {
        for (event, row) in EXPECTED {
            for (state, expected) in STATES.into_iter().zip(row) {
                assert_eq!(decide(state, event), expected, "{event:?} in {state:?}");
            }
        }
    }

    /// The compiler keeps the list of states whole; this keeps the list of events so.
    #[test]
    fn every_event_has_its_row() {
        let rows: Vec<u32> = EXPECTED.iter().map(|(event, _)| *event as u32).collect();
        let mut all = rows.clone();
        all.sort_unstable();
        assert_eq!(all, (0..=Event::IdleDelete as u32).collect::<Vec<_>>());
    }

    #[test]
    fn delete_is_never_refused() {
        for state in STATES {
            assert!(
                !matches!(decide(state, Event::Delete), Refuse(_)),
                "delete refused in {state:?}"
            );
        }
    }

    #[test]
    fn what_nobody_asked_for_is_refused_to_nobody() {
        use Event::{HolderDied, IdleDelete, IdleFreeze, IdleStop};
        for state in STATES {
            for event in [HolderDied, IdleFreeze, IdleStop, IdleDelete] {
                assert!(
                    !matches!(decide(state, event), Refuse(_)),
                    "{event:?} in {state:?}"
                );
            }
        }
    }
}
