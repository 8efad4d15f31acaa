//! A log as lines, read in batches. A gap ends the line before it.

use std::io;
use std::ops::Range;

use super::super::log::Piece;

/// Longest line; a longer one is taken in pieces of this. Also what is read at once.
pub(super) const LINE_MAX_BYTES: usize = 1 << 20;

/// A line, or a piece of one that is too long.
pub(super) struct RawLine<'a> {
    pub(super) offset: u64,
    /// Without its end.
    pub(super) bytes: &'a [u8],
    /// It begins or ends elsewhere: at a gap, or where a long one was cut.
    pub(super) partial: bool,
}

/// What comes next.
pub(super) enum Next<'a> {
    Line(RawLine<'a>),
    Gap(Range<u64>),
    /// No more for now.
    End,
}

/// The lines of a log from an offset on.
pub(super) struct Lines<R> {
    read: R,
    batch: Vec<u8>,
    /// Of the first byte of `batch`.
    offset: u64,
    /// Consumed bytes of `batch`.
    used: usize,
    /// What lies after `batch`.
    after: After,
    /// The next line begins in the middle of one.
    midway: bool,
}

enum After {
    Unread,
    Gap(u64),
    End,
}

/// Where a line ends.
struct Cut {
    len: usize,
    /// Bytes of its end.
    end: usize,
    partial: bool,
}

impl<R: FnMut(u64, usize) -> io::Result<Piece>> Lines<R> {
    /// `read` gives the piece at an offset, of at most so many bytes.
    pub(super) fn new(read: R, offset: u64) -> Self {
        Self {
            read,
            batch: Vec::new(),
            offset,
            used: 0,
            after: After::Unread,
            midway: false,
        }
    }

    /// Offset of the next line.
    pub(super) fn position(&self) -> u64 {
        self.offset + self.used as u64
    }

    /// The next line or gap. Blocks.
    pub(super) fn next(&mut self) -> io::Result<Next<'_>> {
        loop {
            if let Some(cut) = self.cut() {
                return Ok(Next::Line(self.take(&cut)));
            }
            match self.after {
                After::Unread => self.fill()?,
                After::Gap(to) => return Ok(Next::Gap(self.skip(to))),
                After::End => return Ok(Next::End),
            }
        }
    }

    /// The line at the position, if the batch has all of it.
    fn cut(&self) -> Option<Cut> {
        let rest = &self.batch[self.used..];
        // One byte more: a line that is just short enough ends there.
        let seen = &rest[..rest.len().min(LINE_MAX_BYTES + 1)];
        if let Some(len) = seen.iter().position(|b| *b == b'\n') {
            return Some(Cut {
                len,
                end: 1,
                partial: false,
            });
        }
        let (len, end) = (seen.len(), 0);
        match self.after {
            _ if len > LINE_MAX_BYTES => Some(Cut {
                len: LINE_MAX_BYTES,
                end,
                partial: true,
            }),
            After::Gap(_) if len > 0 => Some(Cut {
                len,
                end,
                partial: true,
            }),
            After::End if len > 0 => Some(Cut {
                len,
                end,
                partial: false,
            }),
            _ => None,
        }
    }

    fn take(&mut self, cut: &Cut) -> RawLine<'_> {
        let (offset, start) = (self.position(), self.used);
        self.used += cut.len + cut.end;
        let partial = cut.partial || self.midway;
        self.midway = cut.partial;
        RawLine {
            offset,
            bytes: &self.batch[start..start + cut.len],
            partial,
        }
    }

    /// Reads on after what is left of the batch.
    fn fill(&mut self) -> io::Result<()> {
        self.batch.drain(..self.used);
        self.offset += self.used as u64;
        self.used = 0;
        let end = self.offset + self.batch.len() as u64;
        match (self.read)(end, LINE_MAX_BYTES)? {
            Piece::Data { bytes, .. } => self.batch.extend_from_slice(&bytes),
            Piece::Gap { to, .. } => self.after = After::Gap(to),
            Piece::End => self.after = After::End,
        }
        Ok(())
    }

    fn skip(&mut self, to: u64) -> Range<u64> {
        let from = self.position();
        self.batch.clear();
        self.used = 0;
        self.offset = to;
        self.after = After::Unread;
        self.midway = true;
        from..to
    }
}
