//! Layers made ahead, in the background, and mounted: a create that copies one and a start that mounts it wait several times for
//! the disk, which others write to. After a restart they are nobody's, and removed; their mounts ended with the process that
//! made them.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use super::layer::Layer;
use super::maker::Maker;
use super::mounted::Mounted;
use super::{Settings, reserve};
use crate::error::chain;
use crate::fault;
use crate::storage::caught::caught;
use crate::storage::driver::{DiskLimit, StorageError};
use crate::storage::remove_tree::remove_tree;

/// Their directory, in the state directory.
pub(super) const DIR: &str = "spares";
/// Layers kept of a limit: as many as are often wanted at once.
const READY: usize = 2;
/// Limits that layers are kept of, those most lately used.
const LIMITS_MAX: usize = 2;
/// From the first create that leaves too few to the making of the next one: the create itself would wait for the same disk.
/// Not from the last one, or who creates without a pause would never find one.
const QUIET: Duration = Duration::from_millis(20);

/// A layer that is nobody's yet.
#[derive(Debug)]
pub(super) struct Spare {
    dir: PathBuf,
    image: File,
    mounted: Mounted,
}

/// A thread that makes spares, until this is dropped.
#[derive(Debug)]
pub(super) struct Spares {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    maker: Arc<Maker>,
    settings: Settings,
    dir: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The most lately used one first.
    limits: VecDeque<OfLimit>,
    /// When the next one may be made, where one is lacking.
    due: Option<Instant>,
    /// How many were made: each has a name of its own.
    made: u64,
    is_over: bool,
}

#[derive(Debug)]
struct OfLimit {
    limit: DiskLimit,
    ready: Vec<Spare>,
    /// No more are made of it, until it is used again: one could not be.
    has_failed: bool,
}

/// What the thread is to do.
enum Work {
    Make(DiskLimit, PathBuf),
    Remove(Vec<Spare>),
}

impl Spare {
    fn make(
        dir: PathBuf,
        maker: &Maker,
        limit: DiskLimit,
        settings: &Settings,
    ) -> Result<Self, StorageError> {
        DirBuilder::new()
            .mode(0o700)
            .create(&dir)
            .map_err(|e| StorageError::io("create", &dir, e))?;
        let made = Self::make_in(&dir, maker, limit, settings);
        made.map(|(image, mounted)| Self {
            dir: dir.clone(),
            image,
            mounted,
        })
        .inspect_err(|_| remove_dir(&dir))
    }

    fn make_in(
        dir: &Path,
        maker: &Maker,
        limit: DiskLimit,
        settings: &Settings,
    ) -> Result<(File, Mounted), StorageError> {
        let layer = Layer::of(dir);
        maker.make(&layer, limit)?;
        let (image, _) = layer.open()?;
        let mounted = Mounted::mount(&layer, &image)?;
        mounted.check(&layer)?;
        mounted.hold(&layer, limit, settings)?;
        Ok((image, mounted))
    }

    /// Makes it the layer of a sandbox, which has none.
    pub(super) fn place(self, layer: &Layer) -> Result<(File, Mounted), StorageError> {
        let own = Layer::of(&self.dir);
        let placed = own.give_to(layer);
        remove_dir(&self.dir);
        placed.map(|()| (self.image, self.mounted))
    }

    fn remove(self) {
        remove_dir(&self.dir);
    }
}

/// What cannot be removed now is at the next start.
fn remove_dir(dir: &Path) {
    if let Err(error) = fs::remove_dir_all(dir) {
        tracing::warn!(dir = %dir.display(), error = %chain(&error), "a layer that nobody wants stays until the next start");
    }
}

impl Spares {
    /// Removes what an earlier process left, and starts the thread.
    pub(super) fn start(maker: Arc<Maker>, settings: Settings) -> Result<Self, StorageError> {
        let dir = settings.state_dir.join(DIR);
        sweep(&settings.state_dir).map_err(|e| StorageError::io("empty", &dir, e))?;
        let failed = |e| StorageError::io("start the thread of", &dir, e);
        let shared = Arc::new(Shared {
            maker,
            settings,
            dir: dir.clone(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let own = Arc::clone(&shared);
        let thread = Builder::new()
            .name("spares".to_owned())
            .spawn(move || own.run())
            .map_err(failed)?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// A layer with this limit, if one is ready. More are made from now on.
    pub(super) fn take(&self, limit: DiskLimit) -> Option<Spare> {
        let taken = self.shared.lock().take(limit);
        self.shared.changed.notify_all();
        taken
    }

    #[cfg(test)]
    pub(super) fn ready(&self, limit: DiskLimit) -> usize {
        let state = self.shared.lock();
        let found = state.limits.iter().find(|of| of.limit == limit);
        found.map_or(0, |of| of.ready.len())
    }

    /// Whether the last try to make one failed, or was none.
    #[cfg(test)]
    pub(super) fn has_given_up(&self, limit: DiskLimit) -> bool {
        let state = self.shared.lock();
        let mut found = state.limits.iter().filter(|of| of.limit == limit);
        found.any(|of| of.has_failed)
    }
}

fn sweep(state_dir: &Path) -> io::Result<()> {
    remove_tree(File::open(state_dir)?, DIR)?;
    DirBuilder::new().mode(0o700).create(state_dir.join(DIR))
}

impl Drop for Spares {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that makes layers ahead had panicked");
        }
        let limits = std::mem::take(&mut self.shared.lock().limits);
        spares(limits).into_iter().for_each(Spare::remove);
    }
}

fn spares(limits: VecDeque<OfLimit>) -> Vec<Spare> {
    limits.into_iter().flat_map(|of| of.ready).collect()
}

impl State {
    fn take(&mut self, limit: DiskLimit) -> Option<Spare> {
        let at = self.limits.iter().position(|of| of.limit == limit);
        let mut of = at.and_then(|at| self.limits.remove(at)).unwrap_or(OfLimit {
            limit,
            ready: Vec::new(),
            has_failed: false,
        });
        of.has_failed = false;
        let taken = of.ready.pop();
        self.limits.push_front(of);
        taken
    }

    fn has_work(&self) -> bool {
        self.limits.len() > LIMITS_MAX || self.limits.iter().any(OfLimit::is_lacking)
    }

    fn work(&mut self, dir: &Path) -> Option<Work> {
        if self.limits.len() > LIMITS_MAX {
            return Some(Work::Remove(spares(self.limits.split_off(LIMITS_MAX))));
        }
        let lacking = self.limits.iter().find(|of| of.is_lacking())?;
        let name = self.made.to_string();
        self.made += 1;
        Some(Work::Make(lacking.limit, dir.join(name)))
    }
}

impl OfLimit {
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
                Work::Make(limit, dir) => self.make(limit, dir),
                Work::Remove(spares) => spares.into_iter().for_each(Spare::remove),
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
            if !state.has_work() {
                state.due = None;
                let waited = self.changed.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let now = Instant::now();
            let due = *state.due.get_or_insert(now + QUIET);
            if now >= due {
                return state.work(&self.dir);
            }
            let waited = self.changed.wait_timeout(state, due - now);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn make(&self, limit: DiskLimit, dir: PathBuf) {
        // A panic is a failure like others: creates go on without spares.
        let made = caught("make a layer in", &self.dir, || {
            self.try_to_make(limit, dir)
        });
        let mut state = self.lock();
        let of = state.limits.iter_mut().find(|of| of.limit == limit);
        let unwanted = match (made, of) {
            (Ok(Some(spare)), Some(of)) => {
                of.ready.push(spare);
                None
            }
            // Given up meanwhile.
            (Ok(unwanted), None) => unwanted,
            (Ok(None), Some(of)) => {
                of.has_failed = true;
                None
            }
            (Err(error), of) => {
                tracing::warn!(error = %chain(&error), "no layer could be made ahead");
                if let Some(of) = of {
                    of.has_failed = true;
                }
                None
            }
        };
        drop(state);
        unwanted.into_iter().for_each(Spare::remove);
    }

    /// None where the host has no more than its reserve.
    fn try_to_make(&self, limit: DiskLimit, dir: PathBuf) -> Result<Option<Spare>, StorageError> {
        if reserve::room(&self.settings)? == 0 {
            return Ok(None);
        }
        let made = fault::around("overlay.make spare", || {
            Spare::make(dir, &self.maker, limit, &self.settings)
        });
        made.map(Some)
    }
}
