//! A stretch of a file as a reader, without moving the file's own position.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

/// Reads a stretch of a file.
pub(super) struct Span<'a> {
    file: &'a File,
    offset: u64,
    end: u64,
}

impl<'a> Span<'a> {
    pub(super) fn new(file: &'a File, offset: u64, length: u64) -> Self {
        Self {
            file,
            offset,
            end: offset.saturating_add(length),
        }
    }

    /// All of the file, whatever its length becomes.
    pub(super) fn whole(file: &'a File) -> Self {
        Self {
            file,
            offset: 0,
            end: u64::MAX,
        }
    }
}

impl Read for Span<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end - self.offset).unwrap_or(usize::MAX);
        let want = buffer.len().min(left);
        let count = self.file.read_at(&mut buffer[..want], self.offset)?;
        self.offset += count as u64;
        Ok(count)
    }
}
