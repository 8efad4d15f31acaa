//! Whether a sandbox is in use, and since when it is not. Reading it is no use.
//!
//! Two guards make use: a [`Use`] (a live run, a call that needs the sandbox) and a [`StreamUse`] (a stream of a run that is
//! open to a caller). It decides nothing: what follows from want of use is `idle`'s.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::changes::Teller;

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
        (inner.uses == 0).then(|| inner.idle_for())
    }
}

impl Activity {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Each change is whole before its guard drops.
        self.0.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn idle_for(&self) -> Duration {
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
