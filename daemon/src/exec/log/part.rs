//! A part of a log for who asks once: from an offset, or the last lines. Nobody is held up by it.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::{Piece, StreamLog};

/// A part of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Offset of the bytes.
    pub offset: u64,
    /// The bytes; none at the end of the log.
    pub bytes: Bytes,
    /// The gap that was met before them.
    pub gap: Option<Range<u64>>,
}

/// How much of the end is wanted.
#[derive(Debug, Clone, Copy)]
pub struct Tail {
    /// The last lines, this many; not zero.
    pub lines: u32,
    /// Bytes at most.
    pub limit: usize,
}

/// Reads up to `limit` bytes at `offset`, or after the gap that is there.
pub async fn read_from(log: &Arc<StreamLog>, offset: u64, limit: usize) -> io::Result<Part> {
    let mut at = offset;
    loop {
        let gap = (at > offset).then_some(offset..at);
        match log.read(at, limit).await? {
            Piece::Gap { to, .. } => at = to,
            Piece::End => {
                let bytes = Bytes::new();
                return Ok(Part {
                    offset: at,
                    bytes,
                    gap,
                });
            }
            Piece::Data { offset, bytes } => return Ok(Part { offset, bytes, gap }),
        }
    }
}

/// Reads the last lines, as many of them whole as the limit holds; of a last one that is longer than that, its end.
pub async fn read_tail(log: &Arc<StreamLog>, tail: Tail) -> io::Result<Part> {
    let end = log.len();
    // One byte more shows whether the window begins at a line's beginning.
    let first = end.saturating_sub(tail.limit as u64 + 1);
    let window = read_to(log, first, end).await?;
    let beginning = match window.bytes.first() {
        // The byte before a line.
        Some(_) if window.offset == first && first > 0 => Beginning::After,
        // What lies before is gone, or there is nothing before.
        _ => Beginning::At,
    };
    let cut = tail_cut(&window.bytes, beginning, tail.lines);
    Ok(Part {
        offset: window.offset + cut as u64,
        bytes: window.bytes.slice(cut..),
        gap: window.gap,
    })
}

/// Reads what is there of `first..end` after its last gap.
async fn read_to(log: &Arc<StreamLog>, first: u64, end: u64) -> io::Result<Part> {
    let (mut offset, mut bytes, mut gap) = (first, BytesMut::new(), None);
    loop {
        let at = offset + bytes.len() as u64;
        let want = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX);
        let piece = match want {
            0 => Piece::End,
            want => log.read(at, want).await?,
        };
        match piece {
            Piece::End => {
                let bytes = bytes.freeze();
                return Ok(Part { offset, bytes, gap });
            }
            Piece::Data { bytes: more, .. } => bytes.extend_from_slice(&more),
            Piece::Gap { from, to } => {
                gap = Some(from..to);
                bytes.clear();
                offset = to;
            }
        }
    }
}

/// What the first byte of a window is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beginning {
    /// The first of the wanted.
    At,
    /// The one before them, too many by itself.
    After,
}

/// How many bytes to leave out at the beginning of a window, so that `lines` whole lines are left.
fn tail_cut(window: &[u8], beginning: Beginning, lines: u32) -> usize {
    // The end of the last line ends no line before it.
    let body = window.strip_suffix(b"\n").unwrap_or(window);
    let mut newlines = body.iter().enumerate().filter(|(_, b)| **b == b'\n');
    let first = newlines.clone().next();
    let wanted = lines as usize - 1;
    match (newlines.nth_back(wanted), beginning) {
        (Some((newline, _)), _) => newline + 1,
        (None, Beginning::At) => 0,
        // Fewer whole lines than wanted: all that begin in the window, else the end of the last one.
        (None, Beginning::After) => first.map_or(1, |(newline, _)| newline + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Budget, Stream};
    use super::*;

    fn log(dir: &tempfile::TempDir, text: &[u8]) -> Arc<StreamLog> {
        let budget = Budget {
            first: 4096,
            last: 4096,
            step: 4096,
        };
        let log = StreamLog::new(&dir.path().join("run"), Stream::Stdout, budget);
        for piece in text.chunks(1024) {
            log.append(piece);
        }
        Arc::new(log)
    }

    async fn tail(text: &[u8], lines: u32, limit: usize) -> (u64, Vec<u8>) {
        let dir = tempfile::tempdir().expect("tempdir");
        let part = read_tail(&log(&dir, text), Tail { lines, limit }).await;
        let part = part.expect("readable");
        assert_eq!(part.gap, None);
        (part.offset, part.bytes.to_vec())
    }

    #[tokio::test]
    async fn the_last_lines_are_whole() {
        assert_eq!(tail(b"a\nb\nc\n", 2, 100).await, (2, b"b\nc\n".to_vec()));
        assert_eq!(tail(b"a\nb\nc", 2, 100).await, (2, b"b\nc".to_vec()));
        assert_eq!(tail(b"a\nb\nc\n", 9, 100).await, (0, b"a\nb\nc\n".to_vec()));
        assert_eq!(tail(b"a\n\n\n", 2, 100).await, (2, b"\n\n".to_vec()));
        assert_eq!(tail(b"", 2, 100).await, (0, Vec::new()));
        assert_eq!(tail(b"\n", 1, 100).await, (0, b"\n".to_vec()));
    }

    #[tokio::test]
    async fn a_limit_leaves_lines_out_before_it_cuts_one() {
        // The window of four bytes begins in `bbb`, exactly at `c`, or after it.
        assert_eq!(tail(b"bbb\nc\nd\n", 5, 5).await, (4, b"c\nd\n".to_vec()));
        assert_eq!(tail(b"bbb\nc\nd\n", 5, 4).await, (4, b"c\nd\n".to_vec()));
        assert_eq!(tail(b"bbb\nc\nd\n", 5, 3).await, (6, b"d\n".to_vec()));
        assert_eq!(tail(b"abcdef", 1, 3).await, (3, b"def".to_vec()));
        assert_eq!(tail(b"abcdef\n", 1, 3).await, (4, b"ef\n".to_vec()));
    }

    #[tokio::test]
    async fn a_gap_is_told() {
        let dir = tempfile::tempdir().expect("tempdir");
        let text: String = (0..8000).map(|i| format!("{i:07}\n")).collect();
        let log = log(&dir, text.as_bytes());
        let part = read_from(&log, 4096, 100).await.expect("readable");
        let gap = part.gap.expect("the middle is gone");
        assert_eq!((gap.start, gap.end), (4096, part.offset));
        assert_eq!(
            &part.bytes[..],
            &text.as_bytes()[usize::try_from(part.offset).expect("small")..][..100]
        );
        // More lines than are left: those after the gap.
        let lines = Tail {
            lines: 5000,
            limit: 60_000,
        };
        let part = read_tail(&log, lines).await.expect("readable");
        assert_eq!(part.gap, Some(gap.clone()));
        assert_eq!(part.offset, gap.end);
        assert!(text.as_bytes().ends_with(&part.bytes) && part.bytes.len() >= 4096);
    }
}
