//! What creates will want, made ahead, in the background. What that is, and what it takes to make or remove one, is a driver's;
//! here is how many there are, of what, and when they are made. After a restart they are nobody's: the driver removes them.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use super::StorageError;
use super::caught::caught;
use crate::error::chain;

/// Spares kept of a kind: as many as are often wanted at once.
const READY: usize = 2;

/// What a driver makes ahead.
pub(super) trait Ahead: Debug + Send + Sync + 'static {
    /// What tells one kind of spare from another: only one of the right kind is of use to a create.
    type Kind: Debug + Clone + PartialEq + Send;
    /// One that is made.
    type Spare: Debug + Send;

    /// Kinds that spares are kept of, those most lately used. Who works with more of them waits now and then.
    const KINDS_MAX: usize;
    /// From the last create to the making of the next one: the create itself, its start and its first run would wait for the
    /// same disk and the same processors.
    const QUIET: Duration;
    /// From the first create that leaves too few, at most: who creates without a pause would else never find one.
    const AT_LATEST: Duration;

    /// Where they lie, for messages.
    fn dir(&self) -> &Path;

    /// Makes one; none where that is not to be done now.
    fn make(&self, kind: &Self::Kind) -> Result<Option<Self::Spare>, StorageError>;

    /// Removes one that nobody wants.
    fn remove(&self, spare: Self::Spare) -> Result<(), StorageError>;

    /// What becomes of one that nobody took until the end of the daemon.
    fn leave(&self, spare: Self::Spare) -> Result<(), StorageError> {
        self.remove(spare)
    }
}

/// A thread that makes spares, until this is dropped.
#[derive(Debug)]
pub(super) struct Spares<A: Ahead> {
    shared: Arc<Shared<A>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared<A: Ahead> {
    ahead: A,
    state: Mutex<State<A>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<A: Ahead> {
    /// The most lately used one first.
    kinds: VecDeque<OfKind<A>>,
    /// When the last one was asked for; before the first, when the thread was started.
    taken: Instant,
    /// Since when there are too few.
    lacking: Option<Instant>,
    is_over: bool,
}

#[derive(Debug)]
struct OfKind<A: Ahead> {
    kind: A::Kind,
    ready: Vec<A::Spare>,
    /// No more are made of it, until it is used again: one could not be.
    has_failed: bool,
}

/// What the thread is to do.
enum Work<A: Ahead> {
    Make(A::Kind),
    Remove(Vec<A::Spare>),
}

impl<A: Ahead> Spares<A> {
    /// Starts the thread. Nothing is made before something was [taken](Self::take).
    pub(super) fn start(ahead: A) -> io::Result<Self> {
        let state = State {
            kinds: VecDeque::new(),
            taken: Instant::now(),
            lacking: None,
            is_over: false,
        };
        let shared = Arc::new(Shared {
            ahead,
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let own = Arc::clone(&shared);
        let thread = Builder::new()
            .name("spares".to_owned())
            .spawn(move || own.run())?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// One of this kind, if one is ready. More are made from now on.
    pub(super) fn take(&self, kind: A::Kind) -> Option<A::Spare> {
        let taken = self.shared.lock().take(kind);
        self.shared.changed.notify_all();
        taken
    }

    /// Gives up those of other kinds.
    pub(super) fn keep_only(&self, is_wanted: impl Fn(&A::Kind) -> bool) {
        let mut state = self.shared.lock();
        let (wanted, others) = std::mem::take(&mut state.kinds)
            .into_iter()
            .partition(|of| is_wanted(&of.kind));
        state.kinds = wanted;
        drop(state);
        self.shared.remove(spares(others));
    }

    #[cfg(test)]
    pub(super) fn ready(&self, kind: &A::Kind) -> usize {
        let state = self.shared.lock();
        let found = state.kinds.iter().find(|of| of.kind == *kind);
        found.map_or(0, |of| of.ready.len())
    }

    /// Whether the last try to make one failed, or was none.
    #[cfg(test)]
    pub(super) fn has_given_up(&self, kind: &A::Kind) -> bool {
        let state = self.shared.lock();
        let mut found = state.kinds.iter().filter(|of| of.kind == *kind);
        found.any(|of| of.has_failed)
    }
}

impl<A: Ahead> Drop for Spares<A> {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that makes spares had panicked");
        }
        let left = std::mem::take(&mut self.shared.lock().kinds);
        self.shared.give_up(spares(left), A::leave);
    }
}

fn spares<A: Ahead>(kinds: VecDeque<OfKind<A>>) -> Vec<A::Spare> {
    kinds.into_iter().flat_map(|of| of.ready).collect()
}

impl<A: Ahead> State<A> {
    fn take(&mut self, kind: A::Kind) -> Option<A::Spare> {
        let at = self.kinds.iter().position(|of| of.kind == kind);
        let mut of = at.and_then(|at| self.kinds.remove(at)).unwrap_or(OfKind {
            kind,
            ready: Vec::new(),
            has_failed: false,
        });
        of.has_failed = false;
        let taken = of.ready.pop();
        self.kinds.push_front(of);
        self.taken = Instant::now();
        taken
    }

    /// When the next one may be made, where there are too few now.
    fn due(&mut self, now: Instant) -> Instant {
        let at_latest = *self.lacking.get_or_insert(now) + A::AT_LATEST;
        let is_quiet = self.taken + A::QUIET;
        is_quiet.min(at_latest)
    }

    fn has_work(&self) -> bool {
        self.kinds.len() > A::KINDS_MAX || self.kinds.iter().any(OfKind::is_lacking)
    }

    fn work(&mut self) -> Option<Work<A>> {
        if self.kinds.len() > A::KINDS_MAX {
            return Some(Work::Remove(spares(self.kinds.split_off(A::KINDS_MAX))));
        }
        let lacking = self.kinds.iter().find(|of| of.is_lacking());
        lacking.map(|of| Work::Make(of.kind.clone()))
    }
}

impl<A: Ahead> OfKind<A> {
    fn is_lacking(&self) -> bool {
        self.ready.len() < READY && !self.has_failed
    }
}

impl<A: Ahead> Shared<A> {
    /// What is behind the lock is whole whenever it is free.
    fn lock(&self) -> MutexGuard<'_, State<A>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        while let Some(work) = self.next() {
            match work {
                Work::Make(kind) => self.make(&kind),
                Work::Remove(spares) => self.remove(spares),
            }
        }
    }

    /// Waits for something to do. Nothing at the end.
    fn next(&self) -> Option<Work<A>> {
        let mut state = self.lock();
        loop {
            if state.is_over {
                return None;
            }
            if !state.has_work() {
                state.lacking = None;
                let waited = self.changed.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let now = Instant::now();
            let due = state.due(now);
            if now >= due {
                return state.work();
            }
            let waited = self.changed.wait_timeout(state, due - now);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn make(&self, kind: &A::Kind) {
        // A panic is a failure like others: creates go on without spares.
        let made = caught("make a spare in", self.ahead.dir(), || {
            self.ahead.make(kind)
        });
        let made = made.unwrap_or_else(|error| {
            tracing::warn!(error = %chain(&error), "nothing could be made ahead");
            None
        });
        let mut state = self.lock();
        let of = state.kinds.iter_mut().find(|of| of.kind == *kind);
        let unwanted = match (made, of) {
            (Some(spare), Some(of)) => {
                of.ready.push(spare);
                None
            }
            (None, Some(of)) => {
                of.has_failed = true;
                None
            }
            // Given up meanwhile.
            (unwanted, None) => unwanted,
        };
        drop(state);
        self.remove(unwanted.into_iter().collect());
    }

    fn remove(&self, spares: Vec<A::Spare>) {
        self.give_up(spares, A::remove);
    }

    fn give_up(
        &self,
        spares: Vec<A::Spare>,
        how: impl Fn(&A, A::Spare) -> Result<(), StorageError>,
    ) {
        for spare in spares {
            let given_up = caught("remove a spare in", self.ahead.dir(), || {
                how(&self.ahead, spare)
            });
            if let Err(error) = given_up {
                tracing::warn!(error = %chain(&error), "what nobody wants stays until the next start");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::yield_now;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    /// Words that are made of letters.
    #[derive(Debug, Default)]
    struct Words {
        removed: Mutex<Vec<String>>,
        left: Mutex<Vec<String>>,
        panics: AtomicBool,
    }

    impl Ahead for Arc<Words> {
        type Kind = char;
        type Spare = String;
        const KINDS_MAX: usize = 2;
        /// Longer than whoever takes them is held up by the host.
        const QUIET: Duration = Duration::from_millis(200);
        const AT_LATEST: Duration = Duration::from_millis(600);

        fn dir(&self) -> &Path {
            Path::new("/words")
        }

        fn make(&self, kind: &char) -> Result<Option<String>, StorageError> {
            assert!(!self.panics.load(Ordering::Relaxed), "as was asked for");
            Ok((*kind != 'x').then(|| kind.to_string()))
        }

        fn remove(&self, spare: String) -> Result<(), StorageError> {
            self.removed.lock().expect("whole").push(spare);
            Ok(())
        }

        fn leave(&self, spare: String) -> Result<(), StorageError> {
            self.left.lock().expect("whole").push(spare);
            Ok(())
        }
    }

    fn start() -> (Arc<Words>, Spares<Arc<Words>>) {
        let words = Arc::new(Words::default());
        let spares = Spares::start(Arc::clone(&words)).expect("a thread");
        (words, spares)
    }

    fn until(what: &str, is_so: impl Fn() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < end, "{what}: still not so");
            yield_now();
        }
    }

    #[test]
    fn who_creates_without_a_pause_finds_spares_too() {
        let (_, spares) = start();
        until("found", || spares.take('a').is_some());
    }

    #[test]
    fn none_is_made_before_creates_have_paused() {
        let (_, spares) = start();
        let mut state = spares.shared.lock();
        state.take('a');
        let begun = state.taken;
        assert_eq!(state.due(begun), begun + Arc::<Words>::QUIET);
        let again = begun + Duration::from_millis(150);
        state.taken = again;
        assert_eq!(state.due(again), again + Arc::<Words>::QUIET);
        let later = begun + Duration::from_millis(550);
        state.taken = later;
        assert_eq!(state.due(later), begun + Arc::<Words>::AT_LATEST);
    }

    #[test]
    fn those_used_long_ago_are_removed_and_those_of_the_end_left() {
        let (words, spares) = start();
        for kind in ['a', 'b', 'c'] {
            assert_eq!(spares.take(kind), None);
            until("made", || spares.ready(&kind) == READY);
        }
        until("removed", || {
            words.removed.lock().expect("whole").len() == 2
        });
        spares.keep_only(|kind| *kind != 'b');
        assert_eq!(*words.removed.lock().expect("whole"), ["a", "a", "b", "b"]);
        drop(spares);
        assert_eq!(*words.left.lock().expect("whole"), ["c", "c"]);
    }

    #[test]
    fn what_cannot_be_made_is_tried_again_when_it_is_used_again() {
        let (words, spares) = start();
        spares.take('x');
        until("given up", || spares.has_given_up(&'x'));
        words.panics.store(true, Ordering::Relaxed);
        spares.take('a');
        until("given up", || spares.has_given_up(&'a'));
        words.panics.store(false, Ordering::Relaxed);
        spares.take('a');
        until("made", || spares.ready(&'a') == READY);
    }
}
