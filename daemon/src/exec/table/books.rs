//! What is written down of a sandbox's runs, and read again: the journal, the history that says where in it what is, and
//! the directories of the logs.
//!
//! All of it blocks, and runs on threads that may. The journal's lock is taken before the table's own, which is held for
//! moments only; neither is held while a disk is waited for that syncs. Nothing here fails a run: what cannot be written is kept in memory, and tried again.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{RunTable, Shared, ShortId};
use crate::error::{Error, Result};
use crate::exec::age::{Moment, Stamp};
use crate::exec::entry::{Begun, Ended, Line, log_bytes};
use crate::exec::history::{ENDED_MAX, Kept, UNWRITTEN};
use crate::exec::journal::{Journal, Open, Place, Rewrite};
use crate::exec::retention::Retention;
use crate::exec::run::Run;
use crate::sandbox::id::RunId;

/// Where a table's files are.
pub(super) struct Home {
    dir: PathBuf,
    journal: Mutex<Journal>,
    retention: Arc<Retention>,
    /// Something was written that is not on disk yet.
    unsynced: AtomicBool,
    /// Held by who writes the journal anew.
    compacting: Mutex<()>,
}

impl Home {
    fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RunTable {
    /// Says where the files are of a sandbox that has none yet. Nothing happens if that is known.
    pub(in crate::exec) fn settle_in(&self, dir: &Path, retention: &Arc<Retention>) {
        let mut new = false;
        self.0.home.get_or_init(|| {
            new = true;
            Home {
                dir: dir.to_owned(),
                journal: Mutex::new(Journal::new(dir)),
                retention: Arc::clone(retention),
                unsynced: AtomicBool::new(false),
                compacting: Mutex::new(()),
            }
        });
        if new {
            retention.add(&self.0);
        }
    }

    /// Reads what earlier daemons wrote. Blocks.
    pub(in crate::exec) fn recall(&self, dir: &Path, retention: &Arc<Retention>) {
        self.settle_in(dir, retention);
        let Some(home) = self.0.home.get() else {
            return;
        };
        let mut journal = home.journal();
        let told = match journal.load() {
            Ok(told) => told,
            Err(error) => {
                tracing::error!(dir = %dir.display(), error = &error as &dyn std::error::Error, "the journal of runs cannot be read");
                return;
            }
        };
        let kept = told.ended.iter().map(|(ended, place)| {
            Kept::new(ended, *place, home.number(&ended.begun), ended.log_bytes())
        });
        let mut inner = self.lock();
        inner.history.extend(kept);
        inner.open = told.open;
        inner.taking_up = true;
        retention.settled(inner.history.log_bytes());
    }

    /// A run is started: whatever an earlier daemon left was taken up, or ended when the sandbox was mended.
    pub(in crate::exec) fn begun_anew(&self) {
        self.lock().taking_up = false;
    }

    /// All runs that have processes are known by now: what is too old or too much of the others goes. Blocks.
    pub(in crate::exec) fn taken_up(&self) {
        self.lock().taking_up = false;
        self.0.expire();
    }

    /// Writes down that a run is about to start; done when what this gives is. If that fails, the run is not known to the
    /// next daemon by its name.
    pub(super) fn begin(&self, begun: Begun) -> impl Future<Output = ()> + Send + use<> {
        let short = ShortId::from(&begun.run);
        self.lock().starting.insert(short, begun.clone());
        let shared = Arc::clone(&self.0);
        let writing = tokio::task::spawn_blocking(move || shared.append(&Line::Started(begun)));
        async move {
            let written = writing.await;
            if !matches!(written, Ok(Ok(_))) {
                tracing::warn!(?written, "the start of a run is not written down");
            }
        }
    }

    /// Writes down that a run lives.
    pub(in crate::exec) async fn note_live(&self, run: &Run) {
        self.begin(run.begun()).await;
        self.lock().starting.remove(&ShortId::from(run.id()));
    }

    /// Takes back that a run was to start, in the background.
    pub(super) fn void(&self, run: RunId) {
        self.lock().starting.remove(&ShortId::from(&run));
        let shared = Arc::clone(&self.0);
        tokio::task::spawn_blocking(move || shared.write_void(run));
    }

    /// A run that PID 1 could not fork is none.
    pub(in crate::exec) fn not_started(&self, run: &Run) {
        let mut inner = self.lock();
        inner.known.remove(&ShortId::from(run.id()));
        run.request()
            .into_iter()
            .for_each(|request| inner.requests.let_go(request, run.id()));
        drop(inner);
        // One without a name may have been written down as well: it was slow to be answered.
        self.void(run.id().clone());
    }

    /// Writes down how a run ended.
    pub(in crate::exec) async fn record(&self, run: &Run) {
        let Some(ended) = run.to_record() else {
            return;
        };
        let shared = Arc::clone(&self.0);
        let written = tokio::task::spawn_blocking(move || shared.write_ended(ended, 0)).await;
        if let Err(error) = written {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "the end of a run is not written down"
            );
        }
    }

    /// As [`RunTable::record`], for a run of which nothing is left. Blocks.
    pub(in crate::exec) fn record_settled(&self, ended: Ended) {
        let bytes = ended.log_bytes();
        self.0.write_ended(ended, bytes);
    }

    /// Writes down that whatever lives is being stopped on purpose: if this daemon ends before it has heard of the ends,
    /// the next one knows what to call them.
    pub async fn note_stopping(&self) {
        if self.live() == 0 {
            return;
        }
        let shared = Arc::clone(&self.0);
        let line = Line::Stopping(Stamp::now());
        let written = tokio::task::spawn_blocking(move || shared.append(&line)).await;
        if !matches!(written, Ok(Ok(_))) {
            tracing::warn!(?written, "a stop is not written down");
        }
    }

    /// Reads runs of the history; `None` for one that cannot be read.
    pub(super) async fn read(&self, ids: Vec<ShortId>) -> Result<Vec<Option<Run>>> {
        let shared = Arc::clone(&self.0);
        let read = tokio::task::spawn_blocking(move || shared.read(&ids)).await;
        let failed = |error| {
            Error::internal(
                "RUN_RECORD_UNREADABLE",
                "what is written of ended runs cannot be read",
                error,
            )
        };
        read.map_err(|error| failed(io::Error::other(error)))?
            .map_err(failed)
    }

    /// Takes what an earlier daemon left open, and nobody has told of yet.
    pub(in crate::exec) fn take_open(&self) -> Vec<Open> {
        std::mem::take(&mut self.lock().open)
    }

    /// Takes one of them.
    pub(in crate::exec) fn take_open_run(&self, id: &RunId) -> Option<Begun> {
        let mut inner = self.lock();
        let place = inner.open.iter().position(|one| one.begun.run == *id)?;
        Some(inner.open.swap_remove(place).begun)
    }

    /// Puts back one of which nobody can be asked.
    pub(in crate::exec) fn put_back(&self, open: Open) {
        self.lock().open.push(open);
    }

    /// What is written down of an ended run. Blocks.
    pub(in crate::exec) fn record_of(&self, id: &RunId) -> Option<Ended> {
        let read = self.0.read_records(&[ShortId::from(id)]);
        read.ok()?.pop().flatten()
    }

    /// Writes down that runs were not started. Blocks.
    pub(in crate::exec) fn write_void(&self, run: RunId) {
        self.0.write_void(run);
    }

    /// Whether the last that was written is that all were being stopped.
    pub(in crate::exec) fn was_stopping(&self) -> bool {
        self.0
            .home
            .get()
            .is_some_and(|home| home.journal().is_stopping())
    }

    /// Ids of runs that have logs, and of which nothing else is known. Blocks.
    pub(in crate::exec) fn orphans(&self) -> Vec<RunId> {
        let Some(home) = self.0.home.get() else {
            return Vec::new();
        };
        let known: HashSet<ShortId> = {
            let inner = self.lock();
            let open = inner.open.iter().map(|one| ShortId::from(&one.begun.run));
            let kept = inner.history.iter().map(|kept| kept.id);
            kept.chain(open)
                .chain(inner.known.keys().copied())
                .collect()
        };
        let entries = std::fs::read_dir(&home.dir).into_iter().flatten().flatten();
        let ids = entries.filter_map(|entry| RunId::parse(entry.file_name().to_str()?).ok());
        ids.filter(|id| !known.contains(&ShortId::from(id)))
            .collect()
    }
}

impl Home {
    fn number(&self, begun: &Begun) -> u64 {
        let request = begun.request.as_ref();
        request.map_or(0, |request| self.retention.key.number(&request.id))
    }
}

impl Shared {
    pub(super) fn retention(&self) -> Option<&Arc<Retention>> {
        self.home.get().map(|home| &home.retention)
    }

    fn append(self: &Arc<Self>, line: &Line) -> io::Result<Option<Place>> {
        let Some(home) = self.home.get() else {
            return Ok(None);
        };
        let place = home.journal().append(line)?;
        self.mark_unsynced(home);
        Ok(Some(place))
    }

    fn write_void(self: &Arc<Self>, run: RunId) {
        if let Err(error) = self.append(&Line::Void(run)) {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "a run that was not started is not written down"
            );
        }
    }

    fn write_ended(self: &Arc<Self>, ended: Ended, log_bytes: u64) {
        let Some(home) = self.home.get() else {
            return;
        };
        {
            let mut journal = home.journal();
            let number = home.number(&ended.begun);
            let line = Line::Ended(Box::new(ended));
            let written = journal.append(&line);
            let Line::Ended(ended) = line else { return };
            let mut inner = self.lock();
            let place = match written {
                Ok(place) => place,
                Err(error) => {
                    // A deleted sandbox has no directory any more.
                    if error.kind() != io::ErrorKind::NotFound {
                        tracing::warn!(run = %ended.begun.run, error = &error as &dyn std::error::Error, "the end of a run is only in memory");
                    }
                    UNWRITTEN
                }
            };
            // Its start may still be about to be written; nobody needs that any more.
            inner.starting.remove(&ShortId::from(&ended.begun.run));
            let before = inner
                .history
                .push(Kept::new(&ended, place, number, log_bytes));
            home.retention
                .removed(before.map_or(0, |kept| kept.log_bytes));
            home.retention.settled(log_bytes);
            if place == UNWRITTEN {
                inner
                    .unwritten
                    .insert(ShortId::from(&ended.begun.run), ended);
            }
        }
        self.mark_unsynced(home);
        self.expire();
        self.compact(home);
    }

    fn mark_unsynced(self: &Arc<Self>, home: &Home) {
        if !home.unsynced.swap(true, Ordering::Relaxed) {
            home.retention.written(self);
        }
    }

    /// Writes what could not be written, and puts all of it on disk. Blocks.
    pub(in crate::exec) fn put_on_disk(self: &Arc<Self>) {
        let Some(home) = self.home.get() else {
            return;
        };
        home.unsynced.store(false, Ordering::Relaxed);
        let synced = self.write_the_unwritten(home).and_then(|()| {
            let files = home.journal().unsynced()?;
            files.sync()
        });
        match synced {
            // A deleted sandbox has no directory any more.
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "a journal of runs is not on disk yet"
                );
                self.mark_unsynced(home);
            }
            _ => {}
        }
    }

    fn write_the_unwritten(&self, home: &Home) -> io::Result<()> {
        let mut journal = home.journal();
        let unwritten: Vec<_> = self
            .lock()
            .unwritten
            .iter()
            .map(|(id, one)| (*id, one.clone()))
            .collect();
        for (id, ended) in unwritten {
            let place = journal.append(&Line::Ended(ended))?;
            let mut inner = self.lock();
            inner.unwritten.remove(&id);
            inner
                .history
                .get_mut(id)
                .into_iter()
                .for_each(|kept| kept.place = place);
        }
        Ok(())
    }

    /// Removes the runs that are too old or too many, with their logs. Blocks.
    pub(in crate::exec) fn expire(&self) {
        let Some(home) = self.home.get() else {
            return;
        };
        let due = {
            let mut inner = self.lock();
            let inner = &mut *inner;
            if inner.taking_up {
                return;
            }
            // Survivors keep no place of those that are settled: else many of them would push a result out at once.
            let most = ENDED_MAX + inner.unsettled.len();
            let known = &inner.known;
            let due = inner
                .history
                .expire(most, Moment::now(), |id| !known.contains_key(&id));
            due.iter()
                .for_each(|kept| drop(inner.unwritten.remove(&kept.id)));
            due
        };
        for kept in due {
            remove_logs(&home.dir, kept.id);
            home.retention.removed(kept.log_bytes);
        }
    }

    fn compact(self: &Arc<Self>, home: &Home) {
        // One at a time, since they have one new file.
        let Ok(_alone) = home.compacting.try_lock() else {
            return;
        };
        if let Err(error) = self.compact_alone(home) {
            tracing::warn!(dir = %home.dir.display(), error = &error as &dyn std::error::Error, "a journal of runs is not written anew");
        }
    }

    fn compact_alone(self: &Arc<Self>, home: &Home) -> io::Result<()> {
        let Some((mut rewrite, kept)) = self.begin_to_compact(home)? else {
            return Ok(());
        };
        rewrite.write(kept)?;
        let mut journal = home.journal();
        if let Some(moved) = journal.replace(rewrite)? {
            self.lock().history.move_to(&moved);
        }
        drop(journal);
        self.mark_unsynced(home);
        Ok(())
    }

    /// What it is written anew with; `None` if it is not to be.
    fn begin_to_compact(&self, home: &Home) -> io::Result<Option<(Rewrite, Vec<Place>)>> {
        let mut journal = home.journal();
        let inner = self.lock();
        if !journal.is_bloated(inner.history.len() + inner.known.len()) {
            return Ok(None);
        }
        let kept = inner.history.iter().map(|kept| kept.place);
        let kept = kept.filter(|place| *place != UNWRITTEN).collect();
        let live = inner.known.values().filter(|run| run.is_live());
        let open = inner.open.iter().map(|one| &one.begun);
        let open = open.chain(inner.starting.values()).cloned();
        let open = open.chain(live.map(Run::begun)).collect();
        drop(inner);
        Ok(journal.rewrite(open)?.map(|rewrite| (rewrite, kept)))
    }

    fn read(&self, ids: &[ShortId]) -> io::Result<Vec<Option<Run>>> {
        let Some(home) = self.home.get() else {
            return Ok(vec![None; ids.len()]);
        };
        let read = self.read_records(ids)?.into_iter();
        Ok(read
            .map(|ended| ended.map(|ended| Run::recorded(ended, &home.dir)))
            .collect())
    }

    fn read_records(&self, ids: &[ShortId]) -> io::Result<Vec<Option<Ended>>> {
        let Some(home) = self.home.get() else {
            return Ok(vec![None; ids.len()]);
        };
        // Places hold as long as nobody writes.
        let journal = home.journal();
        let (places, unwritten): (Vec<Place>, Vec<Option<Ended>>) = {
            let inner = self.lock();
            let place = |id: &ShortId| inner.history.get(*id).map_or(UNWRITTEN, |kept| kept.place);
            let unwritten = |id: &ShortId| inner.unwritten.get(id).map(|one| Ended::clone(one));
            ids.iter().map(|id| (place(id), unwritten(id))).unzip()
        };
        let read = if places.iter().all(|place| *place == UNWRITTEN) {
            vec![None; places.len()]
        } else {
            journal.read(&places)?
        };
        let found = read
            .into_iter()
            .zip(unwritten)
            .map(|(read, unwritten)| unwritten.or(read));
        let is_asked_for = |(ended, id): (Option<Ended>, &ShortId)| {
            ended.filter(|ended| ShortId::from(&ended.begun.run) == *id)
        };
        Ok(found.zip(ids).map(is_asked_for).collect())
    }

    /// What the logs of runs take that are not settled.
    pub(in crate::exec) fn unsettled_bytes(&self) -> u64 {
        self.lock()
            .known
            .values()
            .map(|run| log_bytes(run.extents()))
            .sum()
    }

    /// When the run ended that ended first of those that have logs.
    pub(in crate::exec) fn oldest_logs(&self) -> Option<Moment> {
        self.lock()
            .history
            .oldest_with_logs()
            .map(|kept| kept.ended)
    }

    /// Removes the logs of that run. Blocks.
    pub(in crate::exec) fn remove_oldest_logs(&self) {
        let Some(home) = self.home.get() else {
            return;
        };
        let oldest = {
            let mut inner = self.lock();
            let kept = inner.history.oldest_with_logs();
            kept.map(|kept| (kept.id, std::mem::take(&mut kept.log_bytes)))
        };
        if let Some((id, bytes)) = oldest {
            remove_logs(&home.dir, id);
            home.retention.removed(bytes);
        }
    }
}

impl Drop for Shared {
    /// Its sandbox was deleted, and all files with it.
    fn drop(&mut self) {
        let bytes = self.lock().history.log_bytes();
        if let Some(retention) = self.retention() {
            retention.removed(bytes);
        }
    }
}

fn remove_logs(dir: &Path, id: ShortId) {
    match std::fs::remove_dir_all(dir.join(RunId::from(id).as_str())) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "logs of an old run not removed"
            );
        }
        _ => {}
    }
}
