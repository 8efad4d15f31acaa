//! Whether a sandbox is in use, and since when it is not. Reading it is no use.
//!
//! Two guards make use: a [`Use`] (a live run, a call that needs the sandbox) and a [`StreamUse`] (a stream of a run that is
//! open to a caller). It decides nothing: what follows from want of use is `idle`'s.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::changes::Teller;
use crate::store::{Pace, Unused};

/// The use that is made of one sandbox. Cheap to clone.
#[derive(Clone)]
pub(super) struct Activity(Arc<Shared>);

struct Shared {
    inner: Mutex<Inner>,
    /// Told of the first use after somebody asked to be told.
    used: Notify,
    /// Told when a stream opens or closes.
    teller: OnceLock<Arc<Teller>>,
}

struct Inner {
    uses: u32,
    streams: u32,
    /// How long it had not been used by `since`.
    before: Duration,
    /// From when on want of use counts further; `None` while it stands still.
    since: Option<Instant>,
    /// Whether the next use is to be told.
    tell: bool,
}

impl Default for Activity {
    /// One that was used just now.
    fn default() -> Self {
        let inner = Inner {
            uses: 0,
            streams: 0,
            before: Duration::ZERO,
            since: Some(Instant::now()),
            tell: false,
        };
        Self(Arc::new(Shared {
            inner: Mutex::new(inner),
            used: Notify::new(),
            teller: OnceLock::new(),
        }))
    }
}

/// Keeps a sandbox in use until it is dropped. A clone is another use.
pub struct Use(Activity);

impl Clone for Use {
    fn clone(&self) -> Self {
        self.0.use_now()
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.lock().leave();
    }
}

/// An open stream: keeps its sandbox in use, and is counted.
pub struct StreamUse(Use);

impl Drop for StreamUse {
    fn drop(&mut self) {
        self.0.0.lock().streams -= 1;
        self.0.0.tell_change();
    }
}

impl Activity {
    /// Begins a use.
    pub(super) fn use_now(&self) -> Use {
        let tell = {
            let mut inner = self.lock();
            inner.uses += 1;
            std::mem::take(&mut inner.tell)
        };
        if tell {
            self.0.used.notify_one();
        }
        Use(self.clone())
    }

    /// Begins the use of a stream.
    pub(super) fn open_stream(&self) -> StreamUse {
        let stream = StreamUse(self.use_now());
        self.lock().streams += 1;
        self.tell_change();
        stream
    }

    /// Tells of streams that open and close from here on.
    pub(super) fn tell_changes_to(&self, teller: &Arc<Teller>) {
        self.0.teller.get_or_init(|| Arc::clone(teller));
    }

    fn tell_change(&self) {
        if let Some(teller) = self.0.teller.get() {
            teller.tell();
        }
    }

    /// Streams that are open.
    pub(super) fn streams(&self) -> u32 {
        self.lock().streams
    }

    /// How long it has not been used; `None` while it is in use.
    pub(super) fn idle_for(&self) -> Option<Duration> {
        let inner = self.lock();
        (inner.uses == 0).then(|| inner.unused())
    }
}

/// For the sandbox's task alone.
impl Activity {
    /// Waits for the first use after [`tell_next`](Self::tell_next).
    pub(super) async fn used(&self) {
        self.0.used.notified().await;
    }

    /// Has the next use told. Not while it is in use, which gives `None`; else says how long it has not been used.
    pub(super) fn tell_next(&self) -> Option<Duration> {
        let mut inner = self.lock();
        inner.tell = inner.uses == 0;
        inner.tell.then(|| inner.unused())
    }

    /// Counts on from what an earlier daemon remembered.
    pub(super) fn restore(&self, unused: Unused) {
        let mut inner = self.lock();
        inner.before = unused.time;
        inner.since = match unused.pace {
            Pace::Counting => Some(Instant::now()),
            Pace::Standing => None,
        };
    }

    /// Has want of use count on, or stand still.
    pub(super) fn set_pace(&self, pace: Pace) {
        let mut inner = self.lock();
        match pace {
            Pace::Standing => {
                inner.before = inner.unused();
                inner.since = None;
            }
            Pace::Counting => {
                inner.since.get_or_insert_with(Instant::now);
            }
        }
    }

    /// Whether want of use counts.
    pub(super) fn pace(&self) -> Pace {
        match self.lock().since {
            Some(_) => Pace::Counting,
            None => Pace::Standing,
        }
    }
}

impl Activity {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Each change is whole before its guard drops.
        self.0.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn unused(&self) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Ends a use. The last one begins the want of use.
    fn leave(&mut self) {
        self.uses -= 1;
        if self.uses == 0 {
            self.before = Duration::ZERO;
            self.since = self.since.map(|_| Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn want_of_use_counts_from_the_end_of_the_last_use() {
        let activity = Activity::default();
        let first = activity.use_now();
        let second = first.clone();
        tokio::time::advance(MINUTE).await;
        drop(first);
        assert_eq!(activity.idle_for(), None);
        drop(second);
        tokio::time::advance(MINUTE).await;
        assert_eq!(activity.idle_for(), Some(MINUTE));
    }

    #[tokio::test(start_paused = true)]
    async fn it_stands_still_while_paused_and_counts_on() {
        let activity = Activity::default();
        tokio::time::advance(MINUTE).await;
        activity.set_pace(Pace::Standing);
        tokio::time::advance(MINUTE).await;
        assert_eq!(activity.idle_for(), Some(MINUTE));
        activity.set_pace(Pace::Counting);
        tokio::time::advance(MINUTE).await;
        assert_eq!(activity.idle_for(), Some(2 * MINUTE));
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_first_use_is_told() {
        let activity = Activity::default();
        assert_eq!(activity.tell_next(), Some(Duration::ZERO));
        let in_use = activity.use_now();
        activity.used().await;
        assert_eq!(activity.tell_next(), None);
        drop((in_use.clone(), in_use));
        let told = tokio::time::timeout(MINUTE, activity.used()).await;
        assert!(told.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn an_open_stream_is_use_and_is_counted() {
        let activity = Activity::default();
        let stream = activity.open_stream();
        assert_eq!((activity.streams(), activity.idle_for()), (1, None));
        drop(stream);
        assert_eq!(
            (activity.streams(), activity.idle_for()),
            (0, Some(Duration::ZERO))
        );
    }
}
