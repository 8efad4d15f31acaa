//! How much is kept of ended runs on this node: by age, and by what all logs take on disk together.
//!
//! One task in the background does it. A run tells it only what its logs take, as a number; live runs are counted, and
//! never touched. What is removed for want of room are logs: results are small, and stay for their time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::requests::Key;
use super::table::Shared;

/// From one look at what live runs have written, and at what is to be put on disk, to the next.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// From one look for runs that are too old to the next.
const EXPIRE_EVERY: Duration = Duration::from_secs(60);
/// Logs removed before other work of this process gets its turn.
const REMOVED_AT_ONCE: usize = 256;

/// What one look is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Round {
    /// What is to be put on disk, and room.
    Usual,
    /// Runs that are too old as well.
    Thorough,
}

/// What is kept of ended runs on this node.
pub(super) struct Retention {
    /// For all logs together, in bytes.
    max_bytes: u64,
    /// What those of settled runs take.
    settled_bytes: AtomicU64,
    tables: Mutex<Vec<Weak<Shared>>>,
    /// Those whose journals are not on disk yet.
    unsynced: Mutex<Vec<Weak<Shared>>>,
    wake: Notify,
    /// Hashes the bodies of requests.
    pub(super) key: Key,
}

impl Retention {
    /// Keeps at most so much.
    pub(super) fn new(max_bytes: u64, key: Key) -> Self {
        Self {
            max_bytes,
            settled_bytes: AtomicU64::new(0),
            tables: Mutex::default(),
            unsynced: Mutex::default(),
            wake: Notify::new(),
            key,
        }
    }

    /// Looks after the runs of one more sandbox, for as long as that is there.
    pub(super) fn add(&self, table: &Arc<Shared>) {
        lock(&self.tables).push(Arc::downgrade(table));
    }

    /// Notes that a journal was written to.
    pub(super) fn written(&self, table: &Arc<Shared>) {
        lock(&self.unsynced).push(Arc::downgrade(table));
    }

    /// Notes what the logs of a settled run take.
    pub(super) fn settled(&self, bytes: u64) {
        let before = self.settled_bytes.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > self.max_bytes {
            self.wake.notify_one();
        }
    }

    /// Notes that logs are gone.
    pub(super) fn removed(&self, bytes: u64) {
        self.settled_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// What the logs of settled runs take.
    #[cfg(test)]
    pub(super) fn settled_bytes(&self) -> u64 {
        self.settled_bytes.load(Ordering::Relaxed)
    }

    /// Looks after all of it, for as long as the daemon lives.
    pub(super) async fn keep(self: Arc<Self>) {
        let mut expired = Instant::now();
        loop {
            tokio::select! {
                () = self.wake.notified() => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            let round = if expired.elapsed() >= EXPIRE_EVERY {
                expired = Instant::now();
                Round::Thorough
            } else {
                Round::Usual
            };
            let this = Arc::clone(&self);
            let looked = tokio::task::spawn_blocking(move || this.look(round)).await;
            if let Err(error) = looked {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "looking after ended runs failed"
                );
            }
        }
    }

    /// One round. Blocks.
    fn look(&self, round: Round) {
        let unsynced = std::mem::take(&mut *lock(&self.unsynced));
        unsynced
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|table| table.put_on_disk());
        if round == Round::Thorough {
            self.tables().iter().for_each(|table| table.expire());
        }
        self.make_room();
    }

    /// Removes the logs of the runs that ended first until the rest has room.
    fn make_room(&self) {
        let tables = self.tables();
        let live: u64 = tables.iter().map(|table| table.unsettled_bytes()).sum();
        let oldest = |place: usize| Some((Reverse(tables[place].oldest_logs()?), place));
        let mut first_ended: BinaryHeap<_> = (0..tables.len()).filter_map(oldest).collect();
        let mut removed = 0;
        while self.settled_bytes.load(Ordering::Relaxed) + live > self.max_bytes {
            let Some((_, place)) = first_ended.pop() else {
                break;
            };
            tables[place].remove_oldest_logs();
            first_ended.extend(oldest(place));
            removed += 1;
            if removed == REMOVED_AT_ONCE {
                self.wake.notify_one();
                break;
            }
        }
        if removed > 0 {
            tracing::info!(
                runs = removed,
                max_bytes = self.max_bytes,
                "logs of ended runs removed: all logs together took more than they may"
            );
        }
    }

    fn tables(&self) -> Vec<Arc<Shared>> {
        let mut tables = lock(&self.tables);
        tables.retain(|table| table.strong_count() > 0);
        tables.iter().filter_map(Weak::upgrade).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
