//! Who has sandboxes held back from the host's reserve, once a second. What that means is the driver's.

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use super::Storage;
use super::caught::caught;
use crate::error::chain;

/// Between two looks. A disk that writes 1 GiB in a second is the fastest that a reserve of 1 GiB is enough for.
const EVERY: Duration = Duration::from_secs(1);

/// How long the end waits for a look that goes on. On a host in trouble that may wait for a disk, and is left to itself: it ends
/// with the process.
const END_WITHIN: Duration = Duration::from_secs(1);

/// A thread that looks until this is dropped. A thread of its own, since on a host in trouble every other one may be waiting
/// for a disk.
#[derive(Debug)]
pub struct ReserveKeeper {
    /// Dropped to end the thread.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Tells that the thread has let go of the storage.
    over: Receiver<Infallible>,
}

impl ReserveKeeper {
    /// Looks at once, and then every second.
    ///
    /// # Errors
    /// Where the host has no room for a thread.
    pub fn start(storage: Arc<dyn Storage>) -> io::Result<Self> {
        let (end, ended) = channel();
        let (alive, over) = channel();
        let thread = Builder::new().name("reserve".to_owned()).spawn(move || {
            keep(storage.as_ref(), &ended, EVERY);
            // It may be the last one that has it.
            drop(storage);
            drop(alive);
        })?;
        Ok(Self {
            end: Some(end),
            thread: Some(thread),
            over,
        })
    }
}

impl Drop for ReserveKeeper {
    fn drop(&mut self) {
        self.end = None;
        if self.over.recv_timeout(END_WITHIN) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("a look after the reserve waits for a disk, and is not waited for");
            return;
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that keeps the reserve had panicked");
        }
    }
}

fn keep(storage: &dyn Storage, ended: &Receiver<()>, every: Duration) {
    let mut was_kept = true;
    loop {
        let kept = caught("keep the reserve from", Path::new("all sandboxes"), || {
            storage.keep_reserve()
        });
        match &kept {
            // Told once, not every second.
            Err(error) if was_kept => {
                tracing::error!(error = %chain(error), "sandboxes cannot be held back from the host's reserve");
            }
            Ok(()) if !was_kept => tracing::info!("the host's reserve is kept again"),
            _ => {}
        }
        was_kept = kept.is_ok();
        if ended.recv_timeout(every) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::storage::{
        Abilities, DiskLimit, DiskUsage, HostDisk, Place, Root, Storage, StorageError,
    };

    /// Does something at each look, and has no other answer than a failure or a panic.
    struct Looks(Box<dyn Fn() + Send + Sync>);

    fn unasked<T>() -> Result<T, StorageError> {
        Err(StorageError::Unfit {
            what: "unasked".to_owned(),
            hint: "",
        })
    }

    impl Storage for Looks {
        fn name(&self) -> &'static str {
            "looks"
        }
        fn abilities(&self) -> Abilities {
            Abilities {
                limit_bytes: Err(""),
                limit_inodes: Err(""),
                grow: Err(""),
            }
        }
        fn admit(&self) -> Result<(), StorageError> {
            unasked()
        }
        fn prepare(&self, _: Place<'_>, _: DiskLimit) -> Result<(), StorageError> {
            unasked()
        }
        fn check(&self, _: Place<'_>) -> Result<(), StorageError> {
            unasked()
        }
        fn open(&self, _: Place<'_>, _: DiskLimit) -> Result<Root, StorageError> {
            unasked()
        }
        fn set_limit(&self, _: &Path, _: Option<&Path>, _: DiskLimit) -> Result<(), StorageError> {
            unasked()
        }
        fn usage(&self, _: &Path, _: Option<&Path>) -> Result<DiskUsage, StorageError> {
            unasked()
        }
        fn remove(&self, _: &Path, _: &str) -> Result<(), StorageError> {
            unasked()
        }
        fn sweep(&self, _: &[PathBuf]) -> Result<(), StorageError> {
            unasked()
        }
        fn host(&self) -> Result<HostDisk, StorageError> {
            unasked()
        }
        fn grow(&self, _: u64) -> Result<HostDisk, StorageError> {
            unasked()
        }
        fn keep_reserve(&self) -> Result<(), StorageError> {
            (self.0)();
            unasked()
        }
    }

    #[test]
    fn a_look_that_fails_or_panics_is_not_the_last_and_the_end_is_at_once() {
        let (looked, looks) = channel();
        let (looked, is_odd) = (Mutex::new(looked), AtomicBool::new(false));
        let storage = Looks(Box::new(move || {
            // Gone when the test has seen enough.
            looked.lock().expect("nobody panics with it").send(()).ok();
            assert!(
                is_odd.fetch_xor(true, Ordering::Relaxed),
                "every other look panics"
            );
        }));
        let keeper = ReserveKeeper::start(Arc::new(storage)).expect("a thread");
        for _ in 0..3 {
            looks.recv_timeout(EVERY * 10).expect("a look");
        }
        drop(keeper);
        while looks.try_recv().is_ok() {}
        // The thread is gone, and with it the storage that it looked at.
        assert!(looks.recv().is_err());
    }

    #[test]
    fn a_look_that_waits_for_a_disk_does_not_hold_up_the_end() {
        let (looked, looks) = channel();
        let (disk, answer) = channel::<()>();
        let ends = Mutex::new((looked, answer));
        let storage = Looks(Box::new(move || {
            let ends = ends.lock().expect("nobody panics with it");
            ends.0.send(()).ok();
            ends.1.recv().ok();
        }));
        let keeper = ReserveKeeper::start(Arc::new(storage)).expect("a thread");
        looks.recv_timeout(EVERY * 10).expect("a look");
        let (dropped, is_dropped) = channel();
        std::thread::spawn(move || {
            drop(keeper);
            dropped.send(()).ok();
        });
        is_dropped.recv_timeout(END_WITHIN * 10).expect("the end");
        // It is over when it has its answer.
        drop(disk);
        assert!(looks.recv().is_err());
    }
}
