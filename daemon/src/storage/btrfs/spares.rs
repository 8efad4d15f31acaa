//! Roots made ahead, in the background: a snapshot is a commit, and takes a create some milliseconds. After a restart they
//! are nobody's, and removed: which of them nobody ever wrote to is not known then.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use super::removals::Removals;
use super::roots::Roots;
use super::volume::Volume;
use crate::error::chain;
use crate::storage::caught::caught;

/// Roots kept of an image: as many as are often wanted at once.
const READY: usize = 2;
/// From a create to the making of the next one: what a create still writes itself would wait for the commit.
const QUIET: Duration = Duration::from_millis(50);
/// Images that are kept roots of, those most lately used. Who works with more of them waits now and then.
const IMAGES_MAX: usize = 4;

/// A thread that makes spares, until this is dropped.
#[derive(Debug)]
pub(super) struct Spares {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    roots: Arc<Roots>,
    removals: Arc<Removals>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The most lately used one first.
    images: VecDeque<OfImage>,
    last_taken: Option<Instant>,
    is_over: bool,
}

#[derive(Debug)]
struct OfImage {
    path: PathBuf,
    ready: Vec<Volume>,
    /// No more are made of it, until it is used again: one could not be.
    has_failed: bool,
}

/// What the thread is to do.
enum Work {
    Make(PathBuf),
    Destroy(Vec<Volume>),
}

impl Spares {
    pub(super) fn start(roots: Arc<Roots>, removals: Arc<Removals>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            roots,
            removals,
            state: Mutex::default(),
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

    /// A root of this image, if one is ready. More are made of it from now on.
    pub(super) fn take(&self, image: &Path) -> Option<Volume> {
        let taken = self.shared.lock().take(image);
        self.shared.changed.notify_all();
        taken
    }

    /// Gives up those of images that are gone.
    pub(super) fn give_up_without_image(&self) {
        let mut state = self.shared.lock();
        let before = state.images.len();
        let (there, gone) = std::mem::take(&mut state.images)
            .into_iter()
            .partition(|image| image.path.exists());
        state.images = there;
        if state.images.len() != before {
            drop(state);
            self.shared.destroy(volumes(gone));
        }
    }

    #[cfg(test)]
    pub(super) fn ready(&self, image: &Path) -> usize {
        let state = self.shared.lock();
        let found = state.images.iter().find(|of| of.path == image);
        found.map_or(0, |of| of.ready.len())
    }
}

impl Drop for Spares {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that makes roots ahead had panicked");
        }
    }
}

fn volumes(images: VecDeque<OfImage>) -> Vec<Volume> {
    images.into_iter().flat_map(|image| image.ready).collect()
}

impl State {
    fn take(&mut self, path: &Path) -> Option<Volume> {
        let at = self.images.iter().position(|image| image.path == path);
        let mut image = at.and_then(|at| self.images.remove(at)).unwrap_or(OfImage {
            path: path.to_owned(),
            ready: Vec::new(),
            has_failed: false,
        });
        image.has_failed = false;
        let taken = image.ready.pop();
        self.last_taken = Some(Instant::now());
        self.images.push_front(image);
        taken
    }

    fn has_work(&self) -> bool {
        self.images.len() > IMAGES_MAX || self.images.iter().any(OfImage::is_lacking)
    }

    fn work(&mut self) -> Option<Work> {
        if self.images.len() > IMAGES_MAX {
            return Some(Work::Destroy(volumes(self.images.split_off(IMAGES_MAX))));
        }
        let lacking = self.images.iter().find(|image| image.is_lacking());
        lacking.map(|image| Work::Make(image.path.clone()))
    }
}

impl OfImage {
    fn is_lacking(&self) -> bool {
        self.ready.len() < READY && !self.has_failed
    }
}

impl Shared {
    /// What is behind the lock is whole whenever it is free.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        while let Some(work) = self.next() {
            match work {
                Work::Make(image) => self.make(&image),
                Work::Destroy(volumes) => self.destroy(volumes),
            }
        }
    }

    /// Waits for something to do. Nothing at the end.
    fn next(&self) -> Option<Work> {
        let mut state = self.lock();
        loop {
            if state.is_over {
                return None;
            }
            let since = state.last_taken.map_or(QUIET, |taken| taken.elapsed());
            state = if !state.has_work() {
                let waited = self.changed.wait(state);
                waited.unwrap_or_else(PoisonError::into_inner)
            } else if since < QUIET {
                let waited = self.changed.wait_timeout(state, QUIET - since);
                waited.unwrap_or_else(PoisonError::into_inner).0
            } else {
                return state.work();
            };
        }
    }

    fn make(&self, path: &Path) {
        // A panic is a failure like others: creates go on without spares.
        let made = caught("make a root of", path, || self.roots.make(path));
        let mut state = self.lock();
        let image = state.images.iter_mut().find(|image| image.path == path);
        let unwanted = match (made, image) {
            (Ok(volume), Some(image)) => {
                image.ready.push(volume);
                None
            }
            // Given up meanwhile.
            (Ok(volume), None) => Some(volume),
            (Err(error), image) => {
                tracing::warn!(error = %chain(&error), "no root could be made ahead");
                if let Some(image) = image {
                    image.has_failed = true;
                }
                None
            }
        };
        drop(state);
        self.destroy(unwanted.into_iter().collect());
    }

    fn destroy(&self, volumes: Vec<Volume>) {
        for volume in volumes {
            let destroyed = caught("remove", &self.roots.path(volume), || {
                self.roots.destroy(volume)
            });
            match destroyed {
                Ok(destroyed) => self.removals.add(destroyed),
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "a root that nobody wants stays until the next start");
                }
            }
        }
    }
}
