//! The idle policy: what happens to a sandbox that nobody uses, and when. Pure: the time is given, and nothing is done here.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::state::{Event, State};
use crate::error::{Error, Result};

/// The longest time that a policy may name: one hundred years are never, and every clock can count them.
const LONGEST: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// After how long without use something happens. In a record: milliseconds, zero for never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// It does not happen.
    Never,
    /// After this long.
    Unused(Duration),
}

/// What happens to a sandbox that nobody uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdlePolicy {
    /// When it is frozen.
    #[serde(rename = "freeze_after_ms")]
    pub freeze: After,
    /// When it is stopped.
    #[serde(rename = "stop_after_ms")]
    pub stop: After,
    /// When it is deleted, with its files.
    #[serde(rename = "delete_after_ms")]
    pub delete: After,
}

/// A policy as asked for, or a change of one. An absent field takes the default, or stays as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IdleChange {
    /// When it is frozen.
    pub freeze: Option<After>,
    /// When it is stopped.
    pub stop: Option<After>,
    /// When it is deleted.
    pub delete: Option<After>,
}

impl Default for IdlePolicy {
    fn default() -> Self {
        Self {
            freeze: After::Unused(Duration::from_secs(600)),
            stop: After::Unused(Duration::from_secs(3 * 24 * 3600)),
            delete: After::Never,
        }
    }
}

impl IdleChange {
    /// The policy that follows from this one.
    pub fn on(&self, policy: &IdlePolicy) -> IdlePolicy {
        IdlePolicy {
            freeze: self.freeze.unwrap_or(policy.freeze),
            stop: self.stop.unwrap_or(policy.stop),
            delete: self.delete.unwrap_or(policy.delete),
        }
    }
}

impl After {
    /// This many whole seconds and nanoseconds; zero is never.
    pub fn parse(seconds: i64, nanos: i32) -> Result<Self> {
        let (seconds, nanos) = (u64::try_from(seconds), u32::try_from(nanos));
        let time = match (seconds, nanos) {
            (Ok(seconds), Ok(nanos)) if nanos < 1_000_000_000 => Duration::new(seconds, nanos),
            _ => return Err(invalid("it is negative or malformed")),
        };
        if time > LONGEST {
            return Err(invalid("it is longer than a hundred years"));
        }
        Ok(Self::of(time))
    }

    /// After this long; zero is never. What is shorter than a millisecond is one.
    pub fn of(time: Duration) -> Self {
        match time {
            Duration::ZERO => Self::Never,
            time => Self::Unused(time.max(Duration::from_millis(1))),
        }
    }

    /// The time; zero is never.
    pub fn time(self) -> Duration {
        match self {
            Self::Never => Duration::ZERO,
            Self::Unused(time) => time,
        }
    }
}

fn invalid(why: &str) -> Error {
    Error::invalid(
        "INVALID_IDLE_TIME",
        format!("not a time for an idle policy: {why}"),
    )
    .hint("give a time without use, or zero for never")
}

impl Serialize for After {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(self.time().as_millis()).unwrap_or(u64::MAX))
    }
}

impl<'de> Deserialize<'de> for After {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let ms = u64::deserialize(deserializer)?;
        Ok(Self::of(Duration::from_millis(ms).min(LONGEST)))
    }
}

impl IdlePolicy {
    /// What can happen in a state, the strongest first.
    fn actions(&self, state: State) -> impl Iterator<Item = (Event, Duration)> {
        let all = [
            (Event::IdleDelete, self.delete),
            (Event::IdleStop, self.stop),
            (Event::IdleFreeze, self.freeze),
        ];
        let possible = match state {
            State::Running => 3,
            State::Frozen => 2,
            State::Stopped => 1,
            // Somebody waits for its end, or it must be looked at.
            State::Creating | State::Damaged | State::Deleting => 0,
        };
        all.into_iter()
            .take(possible)
            .filter_map(|(event, after)| match after {
                After::Never => None,
                After::Unused(time) => Some((event, time)),
            })
    }

    /// What is due in a state after so long without use.
    pub(super) fn due(&self, state: State, unused: Duration) -> Option<Event> {
        let mut actions = self.actions(state);
        actions
            .find(|(_, after)| unused >= *after)
            .map(|(event, _)| event)
    }

    /// How much longer without use until something is due; `None` where nothing ever is.
    pub(super) fn due_in(&self, state: State, unused: Duration) -> Option<Duration> {
        let times = self.actions(state).map(|(_, after)| after);
        times.map(|after| after.saturating_sub(unused)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    const POLICY: IdlePolicy = IdlePolicy {
        freeze: After::Unused(seconds(10)),
        stop: After::Unused(seconds(20)),
        delete: After::Unused(seconds(30)),
    };

    #[test]
    fn the_strongest_that_is_due_happens() {
        for (state, unused, due) in [
            (State::Running, 9, None),
            (State::Running, 10, Some(Event::IdleFreeze)),
            (State::Frozen, 10, None),
            (State::Frozen, 20, Some(Event::IdleStop)),
            // A daemon that was dead for long does not go by the steps.
            (State::Running, 20, Some(Event::IdleStop)),
            (State::Stopped, 29, None),
            (State::Stopped, 30, Some(Event::IdleDelete)),
            (State::Running, 30, Some(Event::IdleDelete)),
            (State::Damaged, 1000, None),
            (State::Creating, 1000, None),
            (State::Deleting, 1000, None),
        ] {
            assert_eq!(
                POLICY.due(state, seconds(unused)),
                due,
                "{state:?} {unused}"
            );
        }
    }

    #[test]
    fn never_is_never() {
        let never = IdlePolicy {
            freeze: After::Never,
            stop: After::Never,
            delete: After::Never,
        };
        for state in [State::Running, State::Frozen, State::Stopped] {
            assert_eq!(never.due(state, LONGEST * 2), None);
            assert_eq!(never.due_in(state, Duration::ZERO), None);
        }
        assert_eq!(POLICY.due_in(State::Frozen, seconds(5)), Some(seconds(15)));
    }

    #[test]
    fn times_are_checked_and_zero_is_never() {
        assert_eq!(After::parse(0, 0).expect("valid"), After::Never);
        let half = After::parse(0, 500_000_000).expect("valid");
        assert_eq!(half.time(), Duration::from_millis(500));
        for (seconds, nanos) in [(-1, 0), (0, -1), (0, 1_000_000_000), (i64::MAX, 0)] {
            assert!(After::parse(seconds, nanos).is_err(), "{seconds} {nanos}");
        }
    }

    #[test]
    fn a_change_leaves_what_it_does_not_name() {
        let change = IdleChange {
            stop: Some(After::Never),
            ..IdleChange::default()
        };
        let changed = change.on(&POLICY);
        assert_eq!(
            (changed.freeze, changed.stop),
            (POLICY.freeze, After::Never)
        );
        assert_eq!(changed.delete, POLICY.delete);
    }
}
