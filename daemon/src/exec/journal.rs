//! The journal of a sandbox's runs: an append-only file of lines, one for each event (see `entry`).
//!
//! Everything here blocks and belongs on a blocking thread. Nothing is synced on the way of a run: `sync` is called in the
//! background, and the file is written anew without holding up who adds a line. What cannot be read is skipped and counted, and never the last that was there of it: compaction keeps a copy
//! of a file with damaged lines, and leaves one with lines of a later version as it is.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::entry::{Begun, Ended, Line, Unread};
use crate::fault;
use crate::sandbox::id::RunId;

/// The file written anew.
mod rewrite;

pub(super) use rewrite::{Moved, Rewrite};

/// Its name in the directory of the runs; no run's id has this length.
const FILE: &str = "journal";
/// Prefix of copies of journals with damaged lines, and how many there may be.
const COPY: &str = "journal.damaged";
const COPIES_MAX: usize = 8;
/// Far above the longest line: a command of 256 bytes, a request id of 128 and a message of some hundred, each byte escaped
/// to six.
const LINE_MAX: usize = 64 << 10;

/// Where a line lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Offset of its first byte.
    pub(super) at: u64,
    /// Its bytes.
    pub(super) len: u32,
}

/// The journal of one sandbox.
#[derive(Debug)]
pub(super) struct Journal {
    dir: PathBuf,
    /// Lines that are in the file.
    lines: usize,
    damaged: usize,
    later: usize,
    /// The file's end is no line's end.
    torn: bool,
    /// It cannot be written anew.
    fixed: bool,
    /// The last thing that happened is that all runs were being stopped.
    stopping: Option<Line>,
}

/// What a journal tells.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Ended runs, each once.
    pub(super) ended: Vec<(Ended, Place)>,
    /// Runs of whose end it has no word.
    pub(super) open: Vec<Open>,
}

/// A run of whose end the journal has no word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Open {
    pub(super) begun: Begun,
    /// The sandbox was being stopped after it had been started.
    pub(super) stopping: bool,
}

impl Journal {
    /// The journal in the directory of a sandbox's runs. Touches no file.
    pub(super) fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            lines: 0,
            damaged: 0,
            later: 0,
            torn: false,
            fixed: false,
            stopping: None,
        }
    }

    /// Reads all of it.
    pub(super) fn load(&mut self) -> io::Result<Told> {
        let file = match open(&self.path()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Told::default()),
            other => other?,
        };
        let mut reading = Reading::default();
        let mut lines = Lines::new(file);
        while let Some((place, bytes)) = lines.next()? {
            self.lines += 1;
            match Line::decode(bytes) {
                Ok(line) => {
                    self.note(&line);
                    reading.take(line, place);
                }
                Err(Unread::Damaged) => self.damaged += 1,
                Err(Unread::Later) => self.later += 1,
            }
        }
        self.torn = lines.torn;
        if self.damaged + self.later > 0 {
            tracing::warn!(
                journal = %self.path().display(), damaged = self.damaged, later_version = self.later,
                "lines of a journal of runs are skipped"
            );
        }
        Ok(reading.told())
    }

    /// Adds a line.
    pub(super) fn append(&mut self, line: &Line) -> io::Result<Place> {
        fault::around("journal.append", || self.append_here(line))
    }

    fn append_here(&mut self, line: &Line) -> io::Result<Place> {
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(self.path())?;
        let end = file.metadata()?.len();
        let mut bytes = line.encode();
        let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        if self.torn {
            bytes.insert(0, b'\n');
        }
        if let Err(error) = file.write_all(&bytes) {
            // A part of a line would swallow the next one.
            self.torn |= file.set_len(end).is_err();
            return Err(error);
        }
        let at = end + u64::from(self.torn);
        self.torn = false;
        self.lines += 1;
        self.note(line);
        Ok(Place { at, len })
    }

    /// Reads the ended runs at these places; `None` for a place that has no such line any more.
    pub(super) fn read(&self, places: &[Place]) -> io::Result<Vec<Option<Ended>>> {
        let file = open(&self.path())?;
        let read = |place: &Place| {
            let mut bytes = vec![0; (place.len as usize).min(LINE_MAX)];
            file.read_exact_at(&mut bytes, place.at).ok()?;
            match Line::decode(&bytes) {
                Ok(Line::Ended(ended)) => Some(*ended),
                _ => None,
            }
        };
        Ok(places.iter().map(read).collect())
    }

    /// Whether it has many more lines than are of use.
    pub(super) fn is_bloated(&self, used: usize) -> bool {
        /// So that a short journal is not written anew all the time.
        const SLACK: usize = 64;
        !self.fixed && self.lines > 2 * used + SLACK
    }

    /// Whether all runs were being stopped when it was last written.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }

    /// What has to be synced for all that was written to be on disk.
    pub(super) fn unsynced(&self) -> io::Result<Unsynced> {
        Ok(Unsynced {
            file: open(&self.path())?,
            dir: File::open(&self.dir)?,
        })
    }

    fn note(&mut self, line: &Line) {
        match line {
            Line::Stopping(_) => self.stopping = Some(line.clone()),
            Line::Started(_) => self.stopping = None,
            Line::Ended(_) | Line::Void(_) => {}
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.join(FILE)
    }

    /// Gives the file a second name, which stays when the new one takes the first. False if there are copies enough.
    fn keep_copy(&self) -> io::Result<bool> {
        for number in 1..=COPIES_MAX {
            match fs::hard_link(self.path(), self.dir.join(format!("{COPY}-{number}"))) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                other => return other.map(|()| true),
            }
        }
        Ok(false)
    }
}

/// The files of a journal. They are synced without its lock: a disk may take seconds for that.
pub(super) struct Unsynced {
    file: File,
    dir: File,
}

impl Unsynced {
    /// Puts on the disk what was written, as far as the disk tells the truth.
    pub(super) fn sync(self) -> io::Result<()> {
        fault::around("journal.sync", || {
            self.file.sync_data()?;
            self.dir.sync_all()
        })
    }
}

/// What the lines so far come to. A `Started` may be written after the `Ended` or `Void` of the same run: it is not waited for.
#[derive(Default)]
struct Reading {
    ended: Vec<Option<(Ended, Place)>>,
    places: HashMap<RunId, usize>,
    open: Vec<Open>,
    void: HashSet<RunId>,
}

impl Reading {
    fn take(&mut self, line: Line, place: Place) {
        match line {
            Line::Started(begun) => self.open.push(Open {
                begun,
                stopping: false,
            }),
            Line::Ended(ended) => {
                let id = ended.begun.run.clone();
                // The last word on a run counts.
                if let Some(before) = self.places.insert(id, self.ended.len()) {
                    self.ended[before] = None;
                }
                self.ended.push(Some((*ended, place)));
            }
            Line::Void(run) => drop(self.void.insert(run)),
            Line::Stopping(_) => self.open.iter_mut().for_each(|one| one.stopping = true),
        }
    }

    fn told(self) -> Told {
        let Self {
            ended,
            places,
            mut open,
            void,
        } = self;
        let mut seen = HashSet::new();
        open.retain(|one| {
            let run = &one.begun.run;
            !places.contains_key(run) && !void.contains(run) && seen.insert(run.clone())
        });
        Told {
            ended: ended.into_iter().flatten().collect(),
            open,
        }
    }
}

/// The lines of a file, of bounded length.
struct Lines {
    file: BufReader<File>,
    at: u64,
    line: Vec<u8>,
    torn: bool,
}

impl Lines {
    fn new(file: File) -> Self {
        Self {
            file: BufReader::with_capacity(LINE_MAX, file),
            at: 0,
            line: Vec::new(),
            torn: false,
        }
    }

    /// The next line. Of one that is too long the beginning, which is no line by its checksum.
    fn next(&mut self) -> io::Result<Option<(Place, &[u8])>> {
        let at = self.at;
        self.line.clear();
        if self.more()? == 0 {
            return Ok(None);
        }
        let len = self.line.len();
        let mut whole = self.line.ends_with(b"\n");
        while !whole {
            if self.more()? == 0 {
                self.torn = true;
                break;
            }
            whole = self.line.ends_with(b"\n");
            self.line.truncate(len);
        }
        let len = u32::try_from(len).map_err(io::Error::other)?;
        Ok(Some((Place { at, len }, &self.line)))
    }

    fn more(&mut self) -> io::Result<usize> {
        let mut limited = self.file.by_ref().take(LINE_MAX as u64);
        let read = limited.read_until(b'\n', &mut self.line)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// Opens a plain file for reading: what else may lie there is not waited for.
fn open(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a plain file",
        ))
    }
}

#[cfg(test)]
mod tests;
