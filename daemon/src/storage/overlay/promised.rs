//! What layers may take of the host until the next look after the reserve. Whoever is mounted, or gets another limit, between two
//! looks gets of what nobody was promised, so that the host is not promised twice.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A part of what there is to share out is left for those who come until the next look: one of so many.
pub(super) const PART_OF_NEW: u64 = 8;

/// What whoever comes gets even where all is promised, in bytes and as a part of what is free: without a block no overlay is
/// mounted. Twice promised, and so little that the reserve has it.
const LEAST: u64 = 16 << 20;
const LEAST_PART: u64 = 64;

/// Sums of bytes.
#[derive(Debug, Default)]
pub(super) struct Promised(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Promised by the last look that ended.
    by_look: u64,
    /// Given since the beginning of that look.
    since: u64,
    /// The part of it that was given before the look that goes on now.
    before_this: u64,
}

impl Promised {
    /// Gives somebody as much as he may come to take, of the `free` bytes beyond the reserve that nobody was promised. Where that is
    /// too little, half of it: others will come.
    pub(super) fn give(&self, wanted: u64, free: u64) -> u64 {
        let mut state = self.lock();
        let left = free.saturating_sub(state.by_look.saturating_add(state.since));
        let least = LEAST.min(free / LEAST_PART);
        let given = wanted.min(if wanted <= left {
            left
        } else {
            least.max(left / 2)
        });
        state.since += given;
        given
    }

    /// A look begins: it may see what is given from now on, or not.
    pub(super) fn begin_look(&self) {
        let mut state = self.lock();
        state.before_this = state.since;
    }

    /// It promises so much to those that it saw.
    pub(super) fn end_look(&self, promised: u64) {
        let mut state = self.lock();
        state.by_look = promised;
        state.since -= std::mem::take(&mut state.before_this);
    }

    /// What is behind the lock is whole whenever it is free.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_promised_twice() {
        let promised = Promised::default();
        assert_eq!(promised.give(60, 100), 60);
        assert_eq!(promised.give(60, 100), 20);
        assert_eq!(promised.give(60, 100), 10);
        // What was given before a look is in what it promises; what is given meanwhile may not be.
        promised.begin_look();
        assert_eq!(promised.give(5, 100), 5);
        promised.end_look(70);
        assert_eq!(promised.give(25, 100), 25);
        // Hardly anything.
        assert_eq!(promised.give(60, 100), 1);
        promised.begin_look();
        promised.end_look(0);
        assert_eq!(promised.give(100, 100), 100);
    }
}
