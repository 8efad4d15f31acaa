//! Writes a journal anew, without what is of no use any more.
//!
//! The lock on the journal is held when it begins and when the new file takes the old one's place. In between, where the disk
//! may take its time, lines are added to the old file; they are carried over at the end. These are on disk after the next
//! `sync`, as every new line.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use rustix::fs::OFlags;

use super::{Begun, Journal, Line, Place, open};
use crate::fault;

const TEMP: &str = "journal.new";

/// A journal that is being written anew.
#[derive(Debug)]
pub(in crate::exec) struct Rewrite {
    old: File,
    /// The old file's end, and how many lines it had, when this began.
    end: u64,
    lines: usize,
    temp: PathBuf,
    /// Lines for what is not over.
    open: Vec<Line>,
    moved: Moved,
    /// Lines of the new file.
    written: usize,
}

/// Where lines lie after it.
#[derive(Debug, Default)]
pub(in crate::exec) struct Moved {
    /// Old places and new ones, in the order of the old ones.
    kept: Vec<(Place, Place)>,
    /// What was added meanwhile: from here on, in the old file and in the new one.
    tail: (u64, u64),
}

impl Moved {
    /// The new place of a line; `None` for one that was not kept.
    pub(in crate::exec) fn to(&self, place: Place) -> Option<Place> {
        let (old, new) = self.tail;
        if place.at >= old {
            let at = place.at - old + new;
            return Some(Place { at, ..place });
        }
        let found = self.kept.binary_search_by_key(&place.at, |(old, _)| old.at);
        Some(self.kept[found.ok()?].1)
    }
}

impl Journal {
    /// Begins to write it anew, with lines for what is `open_runs`. `None` if it has to stay as it is.
    pub(in crate::exec) fn rewrite(
        &mut self,
        open_runs: Vec<Begun>,
    ) -> io::Result<Option<Rewrite>> {
        self.fixed |= self.later > 0;
        // The rest of a line at its end is ended by the next line.
        if self.fixed || self.torn {
            return Ok(None);
        }
        let old = open(&self.path())?;
        let started = open_runs.into_iter().map(Line::Started);
        Ok(Some(Rewrite {
            end: old.metadata()?.len(),
            old,
            lines: self.lines,
            temp: self.dir.join(TEMP),
            open: started.chain(self.stopping.clone()).collect(),
            moved: Moved::default(),
            written: 0,
        }))
    }

    /// Puts the new file in the place of the old one; where lines lie now, or `None` if it had to stay as it is.
    pub(in crate::exec) fn replace(&mut self, mut new: Rewrite) -> io::Result<Option<Moved>> {
        if self.torn {
            return Ok(None);
        }
        new.carry_over()?;
        if self.damaged > 0 && !self.keep_copy()? {
            self.fixed = true;
            return Ok(None);
        }
        fs::rename(&new.temp, self.path())?;
        self.lines = new.written + (self.lines - new.lines);
        self.damaged = 0;
        Ok(Some(std::mem::take(&mut new.moved)))
    }
}

impl Rewrite {
    /// Writes the new file, with the lines at `kept`, and puts it on disk: without any lock.
    pub(in crate::exec) fn write(&mut self, kept: Vec<Place>) -> io::Result<()> {
        fault::around("journal.compact", || self.write_all(kept))
    }

    fn write_all(&mut self, mut kept: Vec<Place>) -> io::Result<()> {
        kept.sort_unstable_by_key(|place| place.at);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(&self.temp)?;
        let mut file = BufWriter::new(file);
        let mut at = 0;
        for place in kept {
            let bytes = self.line_at(place)?;
            file.write_all(&bytes)?;
            let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
            self.moved.kept.push((place, Place { at, len }));
            at += u64::from(len);
        }
        for line in &self.open {
            let bytes = line.encode();
            file.write_all(&bytes)?;
            at += bytes.len() as u64;
        }
        self.moved.tail = (self.end, at);
        self.written = self.moved.kept.len() + self.open.len();
        file.into_inner().map_err(io::Error::from)?.sync_all()
    }

    fn line_at(&self, place: Place) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; place.len as usize];
        self.old.read_exact_at(&mut bytes, place.at)?;
        if !bytes.ends_with(b"\n") {
            bytes.push(b'\n');
        }
        Ok(bytes)
    }

    /// Adds what was added to the old file meanwhile.
    fn carry_over(&self) -> io::Result<()> {
        let len = self.old.metadata()?.len().saturating_sub(self.end);
        let mut tail = vec![0; usize::try_from(len).map_err(io::Error::other)?];
        self.old.read_exact_at(&mut tail, self.end)?;
        let new = OpenOptions::new().write(true).open(&self.temp)?;
        new.write_all_at(&tail, self.moved.tail.1)
    }
}

impl Drop for Rewrite {
    /// What did not take the journal's place takes no room either.
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.temp);
    }
}
