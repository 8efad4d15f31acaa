//! The log of one stream of a run: its file, which part of it is kept, and who reads it.
//!
//! An offset in the file is the offset in the stream. The first and the last part are kept; what lies between is a
//! punched hole. The file is made at the first byte, so a silent run costs none. Once bytes could not be stored, nothing
//! that follows is, by this daemon or the next: an offset never names other bytes than before. (The next one cannot know
//! how many were lost, and where no file could be made at all it knows of no loss.) The bytes come from `output` or
//! `spool`, the only writers. File work blocks: those methods say so and belong on a blocking thread.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::unistd::Whence;
use rustix::io::{ReadWriteFlags, preadv2};
use tokio::sync::{Notify, Semaphore};

use crate::fault;

mod follower;
mod part;
mod pin;
mod rest;

pub use follower::{Follower, Headroom};
pub use part::{Part, Tail, read_from, read_tail};
pub use pin::Pin;

/// Which stream of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    /// The name of its file in the run's directory.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// How much of a stream's log is kept, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Kept from the start.
    pub first: u64,
    /// Kept from the end, at least.
    pub last: u64,
    /// The hole grows in steps of this: punching costs a walk through the file's extents.
    pub step: u64,
}

/// Half of a run's 64 MiB for each stream.
/// With one step not yet punched and one write of up to a MiB on top, a stream never has more than 32 MiB on disk.
pub const BUDGET: Budget = Budget {
    first: 8 << 20,
    last: 22 << 20,
    step: 1 << 20,
};
/// Reads at once, of all logs: they take microseconds, and a thread for each of a thousand readers would cost memory.
static READS: LazyLock<Semaphore> = LazyLock::new(|| {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Semaphore::new((2 * processors).max(4))
});
/// Most bytes read on the reactor: copying more would keep other tasks waiting.
const CACHED_READ_MAX_BYTES: usize = 256 << 10;
/// Mode of a log, and of one that has lost bytes: that tells the next daemon to store no more. It needs no space, which
/// may be what is wanting.
const MODE: u32 = 0o600;
const MODE_LOST: u32 = 0o400;
/// Holes begin and end at pages, so that every file system frees what they cover.
const PAGE: u64 = 4096;

/// A piece of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Bytes, and the offset of the first.
    Data {
        /// Offset in the stream.
        offset: u64,
        /// The bytes; not empty.
        bytes: Bytes,
    },
    /// Bytes that are no longer there.
    Gap {
        /// The first missing one.
        from: u64,
        /// The first after them.
        to: u64,
    },
    /// Nothing there yet, or no more.
    End,
}

/// The log of one stream.
pub struct StreamLog {
    path: PathBuf,
    budget: Budget,
    state: Mutex<State>,
    /// Bytes were added, or the log was closed.
    grown: Notify,
    /// A reader moved on, or left.
    moved: Notify,
}

#[derive(Default)]
struct State {
    /// Bytes of the stream so far, whether kept or not.
    len: u64,
    /// The punched hole.
    hole: Range<u64>,
    /// From here on nothing was stored.
    lost: Option<Lost>,
    /// Its length when its command had ended: what followed is of survivors.
    end_of_command: Option<u64>,
    /// No byte will follow.
    sealed: bool,
    /// Open from the first byte until the log is sealed and no longer pinned.
    file: Option<Arc<File>>,
    pins: usize,
    followers: Vec<follower::Position>,
    next_follower: u64,
}

#[derive(Clone, Copy)]
struct Lost {
    from: u64,
    errno: Errno,
}

impl StreamLog {
    /// The log of a stream that has no byte yet. Touches no file.
    pub fn new(run_dir: &Path, stream: Stream, budget: Budget) -> Self {
        Self {
            path: run_dir.join(stream.file_name()),
            budget,
            state: Mutex::default(),
            grown: Notify::new(),
            moved: Notify::new(),
        }
    }

    /// The log that an earlier daemon wrote, to be continued at its end. Blocks.
    pub fn reopen(run_dir: &Path, stream: Stream, budget: Budget) -> io::Result<Self> {
        let log = Self::new(run_dir, stream, budget);
        match OpenOptions::new().read(true).write(true).open(&log.path) {
            Ok(file) => {
                let metadata = file.metadata()?;
                let mut state = log.lock();
                state.len = metadata.len();
                state.hole = found_hole(&file, budget.first, state.len);
                if metadata.mode() & 0o777 == MODE_LOST {
                    // Why is known no more.
                    state.lose(Errno::EIO);
                }
                state.file = Some(Arc::new(file));
                drop(state);
                Ok(log)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(log),
            Err(error) => Err(error),
        }
    }

    /// Bytes of the stream so far.
    pub fn len(&self) -> u64 {
        self.lock().len
    }

    /// Whether no byte was written yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Notes that the command has ended: what follows is of survivors. Says how many bytes there were until now.
    pub(super) fn command_ended(&self) -> u64 {
        let mut state = self.lock();
        let len = state.len;
        *state.end_of_command.get_or_insert(len)
    }

    /// Its length when its command had ended; `None` before that. Whoever asks after a read knows which of the bytes that
    /// it got are the command's.
    pub(super) fn end_of_command(&self) -> Option<u64> {
        self.lock().end_of_command
    }

    /// Whether no byte will follow.
    pub fn is_sealed(&self) -> bool {
        self.lock().sealed
    }

    /// Waits until no byte will follow.
    pub(super) async fn sealed(&self) {
        loop {
            let mut grown = std::pin::pin!(self.grown.notified());
            // From here on a seal is not missed.
            grown.as_mut().enable();
            if self.is_sealed() {
                return;
            }
            grown.await;
        }
    }

    /// Why bytes were not stored, if that happened: the offset of the first, and the kernel's error.
    pub fn loss(&self) -> Option<(u64, Errno)> {
        self.lock().lost.map(|lost| (lost.from, lost.errno))
    }

    /// Reads up to `limit` bytes at `offset`, up to the next gap.
    pub async fn read(self: &Arc<Self>, offset: u64, limit: usize) -> io::Result<Piece> {
        let want = {
            let state = self.lock();
            match state.piece_at(offset, limit) {
                Ok(want) => want,
                Err(piece) => return Ok(piece),
            }
        };
        if want <= CACHED_READ_MAX_BYTES
            && let Some(piece) = self.read_cached(offset, want)
        {
            return Ok(piece);
        }
        let turn = READS.acquire().await.map_err(io::Error::other)?;
        let log = Arc::clone(self);
        let read = tokio::task::spawn_blocking(move || {
            // Held by the work and not by the call: a caller who goes away ends only the call.
            let _turn = turn;
            log.read_blocking(offset, want)
        });
        read.await
            .map_err(|_| io::Error::other("the reading thread was ended"))?
    }

    /// Reads `want` bytes that are in the page cache, as what was just written is, without waiting for a disk. `None` if they are
    /// not all there, or if the file is closed already.
    fn read_cached(&self, offset: u64, want: usize) -> Option<Piece> {
        let file = self.lock().file.clone()?;
        let mut bytes = vec![0; want];
        let into = &mut [IoSliceMut::new(&mut bytes)];
        let read = preadv2(&file, into, offset, ReadWriteFlags::NOWAIT);
        (read.ok()? == want).then(|| self.still_there(offset, bytes))
    }

    /// As [`StreamLog::read`], on a thread that may block.
    pub(super) fn read_here(&self, offset: u64, limit: usize) -> io::Result<Piece> {
        let want = match self.lock().piece_at(offset, limit) {
            Ok(want) => want,
            Err(piece) => return Ok(piece),
        };
        self.read_blocking(offset, want)
    }

    /// Reads exactly `want` bytes that [`State::piece_at`] found. Blocks.
    fn read_blocking(&self, offset: u64, want: usize) -> io::Result<Piece> {
        // A statement of its own: the lock is free when the file is opened.
        let file = self.lock().file.clone();
        let file = match file {
            Some(file) => file,
            None => match File::open(&self.path) {
                Ok(file) => Arc::new(file),
                // Removed for want of room, as the logs of ended runs may be.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Ok(Piece::Gap {
                        from: offset,
                        to: self.len(),
                    });
                }
                Err(error) => return Err(error),
            },
        };
        let mut bytes = vec![0; want];
        file.read_exact_at(&mut bytes, offset)?;
        Ok(self.still_there(offset, bytes))
    }

    /// What was read, less what a hole has taken meanwhile: there it may be the hole's zeros.
    fn still_there(&self, offset: u64, mut bytes: Vec<u8>) -> Piece {
        match self.lock().piece_at(offset, bytes.len()) {
            Err(gap) => gap,
            Ok(still) => {
                bytes.truncate(still);
                Piece::Data {
                    offset,
                    bytes: bytes.into(),
                }
            }
        }
    }

    /// The file to write to at the current length, made if need be; `None` where writing has failed before. Blocks.
    pub(super) fn writable(&self) -> Option<Arc<File>> {
        {
            let state = self.lock();
            if state.lost.is_some() || state.file.is_some() {
                return state.file.clone().filter(|_| state.lost.is_none());
            }
        }
        // Not under the lock, which the reactor takes too. Nobody else makes it: there is one writer.
        match fault::around("log.create", || self.create()) {
            Ok(file) => self.lock().file.insert(Arc::new(file)).clone().into(),
            Err(error) => {
                self.lose(errno_of(&error));
                None
            }
        }
    }

    fn create(&self) -> io::Result<File> {
        let dir = self
            .path
            .parent()
            .expect("a log lies in its run's directory");
        match DirBuilder::new().mode(0o700).create(dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(MODE)
            .open(&self.path)
    }

    /// Writes bytes at the end. If that fails they are counted and given up, like all that follow. Blocks.
    pub(super) fn append(&self, bytes: &[u8]) {
        if let Some(file) = self.writable()
            && let Err(error) = fault::around("log.append", || file.write_all_at(bytes, self.len()))
        {
            self.lose(errno_of(&error));
        }
        self.advance(bytes.len() as u64);
    }

    /// Cuts the log back to `len` bytes, if it is longer. Only while nobody reads it yet. Blocks.
    pub(super) fn cut(&self, len: u64) -> io::Result<()> {
        let mut state = self.lock();
        if state.len > len {
            if let Some(file) = &state.file {
                file.set_len(len)?;
            }
            state.len = len;
            state.hole.end = state.hole.end.min(len.max(state.hole.start));
            if let Some(lost) = &mut state.lost {
                lost.from = lost.from.min(len);
            }
        }
        Ok(())
    }

    /// Notes that writing failed: from the current length on, bytes are only counted. Blocks.
    pub(super) fn lose(&self, errno: Errno) {
        let file = {
            let mut state = self.lock();
            state.lose(errno);
            state.file.clone()
        };
        if let Some(Err(error)) =
            file.map(|file| file.set_permissions(Permissions::from_mode(MODE_LOST)))
        {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the next daemon will not know of a log's loss"
            );
        }
    }

    /// Notes that `count` bytes were added, and punches what the budget no longer covers. Blocks.
    pub(super) fn advance(&self, count: u64) {
        let punch = {
            let mut state = self.lock();
            state.grow(count);
            state.next_hole(&self.budget).map(|hole| {
                let fresh = state.hole.end.max(hole.start)..hole.end;
                state.hole = hole;
                (state.file.clone(), fresh)
            })
        };
        if let Some((Some(file), range)) = punch {
            // A file system without holes keeps the bytes; readers see the gap all the same.
            let _ = fault::around("log.punch", || punch_hole(&file, range));
        }
        self.grown.notify_waiters();
    }

    /// No byte will follow: wakes the readers, and closes the file unless it is pinned.
    pub(super) fn seal(&self) {
        {
            let mut state = self.lock();
            state.sealed = true;
            state.close_if_unused();
        }
        self.grown.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// How many stored bytes lie at `offset`, or the piece that is there in their place.
    fn piece_at(&self, offset: u64, limit: usize) -> Result<usize, Piece> {
        if offset >= self.len {
            return Err(Piece::End);
        }
        if self.hole.contains(&offset) {
            return Err(Piece::Gap {
                from: offset,
                to: self.hole.end,
            });
        }
        let stored_end = self.lost.map_or(self.len, |lost| lost.from);
        if offset >= stored_end {
            return Err(Piece::Gap {
                from: offset,
                to: self.len,
            });
        }
        let end = if offset < self.hole.start {
            self.hole.start.min(stored_end)
        } else {
            stored_end
        };
        Ok(usize::try_from(end - offset)
            .unwrap_or(usize::MAX)
            .min(limit))
    }

    fn close_if_unused(&mut self) {
        if self.sealed && self.pins == 0 {
            self.file = None;
        }
    }

    fn lose(&mut self, errno: Errno) {
        self.lost.get_or_insert(Lost {
            from: self.len,
            errno,
        });
    }

    fn grow(&mut self, count: u64) {
        let now = Instant::now();
        let len = self.len;
        // Who had read everything starts to lag only now.
        for follower in self.followers.iter_mut().filter(|f| f.at >= len) {
            follower.since = now;
        }
        self.len += count;
    }

    /// The hole as it should be, if it should be at least a step larger than it is.
    fn next_hole(&self, budget: &Budget) -> Option<Range<u64>> {
        let stored_end = self.lost.map_or(self.len, |lost| lost.from);
        let start = budget.first;
        let end = stored_end.saturating_sub(budget.last) / PAGE * PAGE;
        let have = self.hole.end.max(start);
        (end >= have + budget.step).then_some(start..end)
    }
}

fn punch_hole(file: &File, range: Range<u64>) -> nix::Result<()> {
    let (start, len) = (
        range.start.cast_signed(),
        (range.end - range.start).cast_signed(),
    );
    let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(file, mode, start, len)
}

/// The hole that an earlier daemon punched: from the end of the first part to the next data.
fn found_hole(file: &File, first: u64, len: u64) -> Range<u64> {
    if len <= first {
        return 0..0;
    }
    match nix::unistd::lseek(file, first.cast_signed(), Whence::SeekData) {
        Ok(data) if data.cast_unsigned() > first => first..data.cast_unsigned(),
        _ => 0..0,
    }
}

/// The kernel's error, or EIO for one that did not come from it, e.g. a write that wrote nothing.
pub(super) fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

#[cfg(test)]
mod tests;
