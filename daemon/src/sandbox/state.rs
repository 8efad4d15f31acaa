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
    /// Its processes are to end.
    Stop,
    /// It is to go.
    Delete,
    /// It is to get no CPU.
    Freeze,
    /// Its holder has died.
    HolderDied,
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
        (State::Deleting, Event::HolderDied) => Stay,
        (State::Deleting, _) => Refuse(Refusal::IsBeingDeleted),

        (State::Creating, Event::Created) => Go(State::Running),
        (_, Event::Created) => Refuse(Refusal::AlreadyCreated),
        // The create that is under way starts it.
        (State::Creating, Event::Start) => Stay,
        (State::Creating, Event::Stop | Event::Freeze) => Refuse(Refusal::NotYetCreated),
        (State::Creating, Event::HolderDied) => Go(State::Stopped),

        (State::Damaged, Event::Stop | Event::HolderDied) => Stay,
        (State::Damaged, Event::Start | Event::Freeze) => Refuse(Refusal::IsDamaged),

        (State::Running, Event::Start) => Stay,
        (State::Running, Event::Freeze) => Go(State::Frozen),
        (State::Frozen, Event::Start) => Go(State::Running),
        (State::Frozen, Event::Freeze) => Stay,
        (State::Running | State::Frozen, Event::Stop | Event::HolderDied) => Go(State::Stopped),

        (State::Stopped, Event::Start) => Go(State::Running),
        (State::Stopped, Event::Stop | Event::HolderDied) => Stay,
        (State::Stopped, Event::Freeze) => Refuse(Refusal::NotRunning),
    }
}

#[cfg(test)]
mod tests {
    use super::Decision::{Go, Refuse, Stay};
    use super::Event::{Created, Delete, Freeze, HolderDied, Start, Stop};
    use super::Refusal::{AlreadyCreated, IsBeingDeleted, IsDamaged, NotRunning, NotYetCreated};
    use super::State::{Creating, Damaged, Deleting, Frozen, Running, Stopped};
    use super::*;

    const STATES: [State; 6] = [Creating, Running, Frozen, Stopped, Damaged, Deleting];
    const EVENTS: [Event; 6] = [Created, Start, Stop, Delete, Freeze, HolderDied];

    /// One row per state in the order of `STATES`, one column per event in the order of `EVENTS`.
    const EXPECTED: [[Decision; 6]; 6] = [
        [
            Go(Running),
            Stay,
            Refuse(NotYetCreated),
            Go(Deleting),
            Refuse(NotYetCreated),
            Go(Stopped),
        ],
        [
            Refuse(AlreadyCreated),
            Stay,
            Go(Stopped),
            Go(Deleting),
            Go(Frozen),
            Go(Stopped),
        ],
        [
            Refuse(AlreadyCreated),
            Go(Running),
            Go(Stopped),
            Go(Deleting),
            Stay,
            Go(Stopped),
        ],
        [
            Refuse(AlreadyCreated),
            Go(Running),
            Stay,
            Go(Deleting),
            Refuse(NotRunning),
            Stay,
        ],
        [
            Refuse(AlreadyCreated),
            Refuse(IsDamaged),
            Stay,
            Go(Deleting),
            Refuse(IsDamaged),
            Stay,
        ],
        [
            Refuse(IsBeingDeleted),
            Refuse(IsBeingDeleted),
            Refuse(IsBeingDeleted),
            Stay,
            Refuse(IsBeingDeleted),
            Stay,
        ],
    ];

    #[test]
    fn every_pair_of_state_and_event_is_decided_as_written() {
        for (state, row) in STATES.into_iter().zip(EXPECTED) {
            for (event, expected) in EVENTS.into_iter().zip(row) {
                assert_eq!(decide(state, event), expected, "{event:?} in {state:?}");
            }
        }
    }

    #[test]
    fn delete_is_never_refused() {
        for state in STATES {
            assert!(
                !matches!(decide(state, Delete), Refuse(_)),
                "delete refused in {state:?}"
            );
        }
    }
}
