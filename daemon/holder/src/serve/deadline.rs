//! Deadlines: the holder alone enforces them, by its monotonic clock, and they stand still while the sandbox is frozen.
//!
//! No acknowledgement is needed for that. The daemon says that it will freeze before it does. The loop takes the time first,
//! then reads all that was said, then keeps deadlines by that time: a deadline that is kept had passed before the freeze
//! began, however late the loop gets its turn. The daemon's time goes with the message, so that being late costs no run
//! any of its time either.

use super::run::{Cause, Ending, Run};
use super::run_table::RunTable;

impl RunTable {
    /// The next time at which something has to be done, in nanoseconds; none while frozen.
    pub(super) fn next_deadline_ns(&self) -> Option<u64> {
        if self.frozen_since_ns.is_some() {
            return None;
        }
        let due = self.runs.iter().flat_map(|run| {
            let next_look = match run.ending {
                Ending::Grace(until) | Ending::Held(until) => Some(until),
                Ending::No | Ending::Killed => None,
            };
            [run.deadline_ns, next_look]
        });
        due.flatten().min()
    }

    /// Whether something is to be done by this time.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        self.next_deadline_ns().is_some_and(|due| now_ns >= due)
    }

    /// Starts the clocks again if no run is frozen after all: the daemon died between its word and its deed. The next daemon
    /// would say so, but may be long in coming.
    pub(super) fn look_whether_frozen(&mut self, now_ns: u64) {
        let mut live = self.runs.iter().filter(|run| run.exited.is_none());
        if self.frozen_since_ns.is_some() && live.all(Run::is_in_motion) {
            self.thaw(now_ns);
        }
    }

    /// Whether a run is between its SIGTERM and its end.
    pub(super) fn any_ending(&self) -> bool {
        self.runs
            .iter()
            .any(|run| matches!(run.ending, Ending::Grace(_)))
    }

    /// Begins and goes on with the ending of every run whose time has come.
    pub(super) fn keep_deadlines(&mut self, now_ns: u64) {
        if self.frozen_since_ns.is_some() {
            return;
        }
        for run in &mut self.runs {
            if run.deadline_ns.is_some_and(|deadline| now_ns >= deadline) {
                run.begin_ending(Cause::Deadline, now_ns, run.grace_ns);
            }
            run.continue_ending(now_ns);
        }
    }

    /// Stops all clocks. Twice is once.
    pub(super) fn freeze(&mut self, now_ns: u64) {
        self.frozen_since_ns.get_or_insert(now_ns);
    }

    /// Starts all clocks again with the time that they had left.
    pub(super) fn thaw(&mut self, now_ns: u64) {
        let Some(since) = self.frozen_since_ns.take() else {
            return;
        };
        let pause = now_ns.saturating_sub(since);
        for run in &mut self.runs {
            run.shift(pause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// A table that was told of a freeze, without runs: what it does with its clocks alone.
    fn frozen_at(since_ns: u64) -> RunTable {
        let mut table = RunTable::new();
        table.freeze(since_ns);
        table
    }

    #[test]
    fn nothing_is_due_while_frozen_and_the_first_word_counts() {
        let mut table = frozen_at(SECOND);
        table.freeze(5 * SECOND);
        assert_eq!(table.frozen_since_ns, Some(SECOND));
        assert!(!table.is_due(u64::MAX));
        table.thaw(9 * SECOND);
        assert_eq!(table.frozen_since_ns, None);
    }

    /// Nobody of whom it could be said is frozen: the clocks go on.
    #[test]
    fn without_a_daemon_clocks_that_stand_for_nobody_go_on() {
        let mut table = frozen_at(SECOND);
        table.look_whether_frozen(2 * SECOND);
        assert_eq!(table.frozen_since_ns, None);
    }
}
