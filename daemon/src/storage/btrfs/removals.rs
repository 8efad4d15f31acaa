//! Waiting for what the kernel still removes, in the background. What is waited for is out of everybody's sight; after a
//! crash the next start waits for it again.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use super::roots::{Destroyed, Roots};
use crate::error::chain;
use crate::storage::caught::caught;

/// From one look to the next, at first and at most: small trees are gone with the next commit, and large ones take long.
const AGAIN_AFTER: Duration = Duration::from_millis(200);
const AGAIN_AFTER_MOST: Duration = Duration::from_secs(5);
/// From the last delete to the first look, and from the first delete at most: a look is a commit, which holds up whoever
/// creates meanwhile.
const QUIET: Duration = Duration::from_millis(100);
const AT_LATEST: Duration = Duration::from_secs(1);

/// A thread that waits for destroyed roots to be gone, until this is dropped.
#[derive(Debug)]
pub(super) struct Removals {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// New to the thread. As many as there are sandboxes to delete.
    destroyed: Vec<Destroyed>,
    /// Not gone yet, those that are new to the thread included.
    left: usize,
    is_over: bool,
}

impl Removals {
    pub(super) fn start(roots: Arc<Roots>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let own = Arc::clone(&shared);
        let thread = Builder::new()
            .name("removals".to_owned())
            .spawn(move || own.run(&roots))?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Has the thread wait for one more.
    pub(super) fn add(&self, destroyed: Destroyed) {
        let mut state = self.shared.lock();
        state.left += 1;
        state.destroyed.push(destroyed);
        drop(state);
        self.shared.changed.notify_all();
    }

    /// How many are not gone yet.
    pub(super) fn left(&self) -> usize {
        self.shared.lock().left
    }
}

impl Drop for Removals {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that waits for removals had panicked");
        }
    }
}

impl Shared {
    /// What is behind the lock is whole whenever it is free.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, roots: &Roots) {
        let mut waiting: Vec<Destroyed> = Vec::new();
        let mut pause = AGAIN_AFTER;
        while let Some(more) = self.next(waiting.is_empty(), pause) {
            pause = if more.is_empty() {
                (pause * 2).min(AGAIN_AFTER_MOST)
            } else {
                AGAIN_AFTER
            };
            waiting.extend(more);
            if let Err(errno) = roots.have_destroyed_removed() {
                tracing::debug!(%errno, "no commit for what is to be removed");
            }
            let before = waiting.len();
            // Each of them may wait for the disk: the end does not wait for all.
            waiting.retain(|destroyed| self.lock().is_over || !is_gone(roots, destroyed));
            self.lock().left -= before - waiting.len();
        }
    }

    /// Waits for something to do: what is new, or that the pause is over where something is waited for. Nothing at the end.
    fn next(&self, is_idle: bool, pause: Duration) -> Option<Vec<Destroyed>> {
        let state = self.lock();
        let nothing = |state: &mut State| state.destroyed.is_empty() && !state.is_over;
        let mut state = if is_idle {
            let waited = self.changed.wait_while(state, nothing);
            waited.unwrap_or_else(PoisonError::into_inner)
        } else {
            let waited = self.changed.wait_timeout_while(state, pause, nothing);
            waited.unwrap_or_else(PoisonError::into_inner).0
        };
        let begun = Instant::now();
        let mut known = 0;
        while state.destroyed.len() > known && !state.is_over && begun.elapsed() < AT_LATEST {
            known = state.destroyed.len();
            let more = |state: &mut State| state.destroyed.len() == known && !state.is_over;
            let waited = self.changed.wait_timeout_while(state, QUIET, more);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        (!state.is_over).then(|| std::mem::take(&mut state.destroyed))
    }
}

fn is_gone(roots: &Roots, destroyed: &Destroyed) -> bool {
    let path = roots.path(destroyed.volume);
    let looked = caught("look for", &path, || roots.is_gone(destroyed));
    looked.unwrap_or_else(|error| {
        tracing::debug!(error = %chain(&error), "what is left of a deleted sandbox is looked for again");
        false
    })
}
