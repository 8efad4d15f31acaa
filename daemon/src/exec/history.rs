//! Which ended runs of a sandbox are kept: a few dozen bytes for each, and where the journal has the rest.
//!
//! It reads and removes nothing: it says what is there, and what has to go.

use std::collections::VecDeque;
use std::time::Duration;

use super::age::Moment;
use super::entry::Ended;
use super::journal::{Moved, Place};
use crate::sandbox::id::RunId;

/// Ended runs that are kept of one sandbox.
pub(super) const ENDED_MAX: usize = 1_000;
/// How long an ended run is kept.
pub(super) const ENDED_FOR: Duration = Duration::from_secs(24 * 3600);
/// Where a run is that could not be written to the journal: in memory.
pub(super) const UNWRITTEN: Place = Place {
    at: u64::MAX,
    len: 0,
};
/// Bytes of an id.
const ID_LEN: usize = 20;

/// An id without the pointer and the lengths that a string has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ShortId([u8; ID_LEN]);

impl From<&RunId> for ShortId {
    fn from(id: &RunId) -> Self {
        Self(
            id.as_str()
                .as_bytes()
                .try_into()
                .expect("an id has 20 bytes"),
        )
    }
}

impl From<ShortId> for RunId {
    fn from(id: ShortId) -> Self {
        let text = std::str::from_utf8(&id.0).expect("an id is text");
        Self::parse(text).expect("it was an id")
    }
}

/// An ended run, as it is kept in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) id: ShortId,
    pub(super) ended: Moment,
    /// Milliseconds since 1970, UTC.
    pub(super) started_ms: u64,
    /// The number of its request id; zero for none.
    pub(super) request: u64,
    /// What its logs take on disk; zero while it has processes, and once they were removed.
    pub(super) log_bytes: u64,
    pub(super) place: Place,
}

impl Kept {
    /// A run that `place` in the journal tells of.
    pub(super) fn new(ended: &Ended, place: Place, request: u64, log_bytes: u64) -> Self {
        Self {
            id: ShortId::from(&ended.begun.run),
            ended: ended.at.moment(),
            started_ms: ended.begun.started_ms,
            request,
            log_bytes,
            place,
        }
    }
}

/// The ended runs of a sandbox, in the order of their ends. Look-ups go through all of them: a thousand take microseconds,
/// and an index would take as much memory again.
#[derive(Debug, Default)]
pub(super) struct History(VecDeque<Kept>);

impl History {
    /// The run of this id.
    pub(super) fn get(&self, id: ShortId) -> Option<&Kept> {
        self.0.iter().rev().find(|kept| kept.id == id)
    }

    /// As [`History::get`], to be changed.
    pub(super) fn get_mut(&mut self, id: ShortId) -> Option<&mut Kept> {
        self.0.iter_mut().rev().find(|kept| kept.id == id)
    }

    /// The newest run whose request id has this number.
    pub(super) fn by_request(&self, number: u64) -> Option<&Kept> {
        self.0.iter().rev().find(|kept| kept.request == number)
    }

    /// All of them, the first that ended first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Kept> {
        self.0.iter()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a run that has just ended, or was written again: then in the place of what was known of it, which is given
    /// back.
    pub(super) fn push(&mut self, kept: Kept) -> Option<Kept> {
        if let Some(before) = self.get_mut(kept.id) {
            return Some(std::mem::replace(before, kept));
        }
        self.0.push_back(kept);
        None
    }

    /// Adds what a journal tells.
    pub(super) fn extend(&mut self, kept: impl Iterator<Item = Kept>) {
        self.0.extend(kept);
        self.0.make_contiguous().sort_by_key(|one| one.ended);
    }

    /// Takes out, oldest first, what is too old or more than `most`. One that is not settled stays in its place: the order
    /// is that of the ends, and the first that is young enough is the last that has to be looked at.
    pub(super) fn expire(
        &mut self,
        most: usize,
        now: Moment,
        is_settled: impl Fn(ShortId) -> bool,
    ) -> Vec<Kept> {
        let mut due = Vec::new();
        let mut place = 0;
        while let Some(kept) = self.0.get(place) {
            if self.0.len() <= most && kept.ended.age(now) < ENDED_FOR {
                break;
            }
            if is_settled(kept.id) {
                due.extend(self.0.remove(place));
            } else {
                place += 1;
            }
        }
        due
    }

    /// Notes that lines of the journal lie elsewhere now.
    pub(super) fn move_to(&mut self, moved: &Moved) {
        for kept in self.0.iter_mut().filter(|kept| kept.place != UNWRITTEN) {
            if let Some(place) = moved.to(kept.place) {
                kept.place = place;
            }
        }
    }

    /// The oldest run whose logs take room.
    pub(super) fn oldest_with_logs(&mut self) -> Option<&mut Kept> {
        self.0.iter_mut().find(|kept| kept.log_bytes > 0)
    }

    /// What all logs take on disk.
    pub(super) fn log_bytes(&self) -> u64 {
        self.0.iter().map(|kept| kept.log_bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::age::Stamp;
    use super::super::entry::tests::{begun, ended};
    use super::*;

    fn kept(ended_ms: i64) -> Kept {
        let mut one = Kept::new(&ended(begun(None), 0), UNWRITTEN, 0, 1);
        one.ended = Moment::at(ended_ms);
        one
    }

    const HOUR: i64 = 3_600_000;

    #[test]
    fn a_kept_run_is_small() {
        // A thousand of them in each of a thousand sandboxes take 80 MB.
        assert!(size_of::<Kept>() <= 80, "{} bytes", size_of::<Kept>());
        let id = RunId::random();
        assert_eq!(RunId::from(ShortId::from(&id)), id);
    }

    #[test]
    fn an_unsettled_run_keeps_its_place_and_hides_nothing_behind_it() {
        let runs: Vec<Kept> = (0..4).map(|n| kept(n * HOUR)).collect();
        let mut history = History::default();
        history.extend(runs.iter().copied());
        let is_settled = |id| id != runs[0].id;
        assert_eq!(
            history.expire(3, Moment::at(3 * HOUR), is_settled),
            runs[1..2]
        );
        assert_eq!(
            history.expire(3, Moment::at(26 * HOUR), is_settled),
            runs[2..3]
        );
        let left: Vec<Kept> = history.iter().copied().collect();
        assert_eq!(left, [runs[0], runs[3]]);
        assert_eq!(
            history.expire(3, Moment::at(26 * HOUR), |_| true),
            runs[..1]
        );
        assert_eq!(history.len(), 1);
    }

    #[test]
    fn a_run_that_is_written_again_is_there_once_and_in_its_place() {
        let mut history = History::default();
        let runs: Vec<Kept> = (0..3).map(kept).collect();
        runs.iter()
            .for_each(|one| assert_eq!(history.push(*one), None));
        let again = Kept {
            log_bytes: 77,
            ..runs[1]
        };
        assert_eq!(history.push(again), Some(runs[1]));
        let order: Vec<Kept> = history.iter().copied().collect();
        assert_eq!(order, [runs[0], again, runs[2]]);
        assert_eq!(
            (history.log_bytes(), history.get(again.id)),
            (79, Some(&again))
        );
    }

    #[test]
    fn the_journals_order_does_not_count() {
        let mut history = History::default();
        let runs: Vec<Kept> = [3, 1, 2].map(kept).into();
        history.extend(runs.iter().copied());
        let order: Vec<Kept> = history.iter().copied().collect();
        assert_eq!(order, [runs[1], runs[2], runs[0]]);
        let ended = Stamp::now().moment().age(Moment::now());
        assert!(ended < ENDED_FOR);
    }
}
