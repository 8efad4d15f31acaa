//! A stream cut to a budget for a result: its first 30 % and its last 70 %, with exact counts.
//!
//! The cuts fall between characters, and at a line's end where one is near: within 4 KiB and a quarter of the part.
//! Whether the bytes are UTF-8 at all does not matter; where they are not, the cut falls where it falls.

use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::log::{Piece, StreamLog};

/// Share of the budget that goes to the head, in per cent.
const HEAD_PERCENT: u64 = 30;
/// How far a cut moves to fall at a line's end, in bytes.
const LINE_NEAR: usize = 4096;
/// Longest UTF-8 character, in bytes.
const CHAR_MAX: usize = 4;

/// A stream's output, cut to a budget.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct View {
    /// The first bytes; all of them where nothing was dropped.
    pub head: Bytes,
    /// The last bytes; empty where nothing was dropped.
    pub tail: Bytes,
    /// Bytes of the stream.
    pub total: u64,
    /// Bytes between head and tail.
    pub dropped: u64,
}

impl View {
    /// Reads the first `total` bytes of `log`, cut to `budget`.
    pub async fn of(log: &Arc<StreamLog>, total: u64, budget: u64) -> io::Result<Self> {
        if total <= budget {
            let head = read(log, 0, total).await?;
            let dropped = total - head.len() as u64;
            return Ok(Self {
                head,
                tail: Bytes::new(),
                total,
                dropped,
            });
        }
        let head_budget = budget * HEAD_PERCENT / 100;
        let tail_from = total - (budget - head_budget);
        let head = read(log, 0, head_budget).await?;
        let head = head.slice(..head_cut(&head));
        // One byte more shows whether the tail begins at a line's beginning.
        let tail = read(log, tail_from - 1, total - tail_from + 1).await?;
        let whole = tail.len() as u64 == total - tail_from + 1;
        let tail = if whole {
            tail.slice(1 + tail_cut(&tail)..)
        } else {
            Bytes::new()
        };
        let dropped = total - head.len() as u64 - tail.len() as u64;
        Ok(Self {
            head,
            tail,
            total,
            dropped,
        })
    }
}

/// Reads `len` bytes at `offset`, or what lies there before a gap.
async fn read(log: &Arc<StreamLog>, offset: u64, len: u64) -> io::Result<Bytes> {
    let mut all = BytesMut::new();
    while (all.len() as u64) < len {
        let left = usize::try_from(len - all.len() as u64).map_err(io::Error::other)?;
        match log.read(offset + all.len() as u64, left).await? {
            Piece::Data { bytes, .. } if bytes.len() as u64 == len => return Ok(bytes),
            Piece::Data { bytes, .. } => all.extend_from_slice(&bytes),
            Piece::Gap { .. } | Piece::End => break,
        }
    }
    Ok(all.freeze())
}

/// Where to cut the end of a head.
fn head_cut(head: &[u8]) -> usize {
    let near = LINE_NEAR.min(head.len() / 4);
    let from = head.len() - near;
    if let Some(newline) = head[from..].iter().rposition(|b| *b == b'\n') {
        return from + newline + 1;
    }
    // The last character, if it lacks bytes.
    for back in 1..=CHAR_MAX.min(head.len()) {
        let at = head.len() - back;
        if let Some(width) = char_width(head[at]) {
            return if width > back { at } else { head.len() };
        }
    }
    head.len()
}

/// How many bytes to cut off the beginning of a tail; `tail[0]` is the byte before it.
fn tail_cut(tail: &[u8]) -> usize {
    let body = &tail[1..];
    let near = LINE_NEAR.min(body.len() / 4);
    // `tail[..=near]` is the byte before and the first `near` of the body.
    if let Some(newline) = tail[..=near].iter().position(|b| *b == b'\n') {
        return newline;
    }
    // Bytes that belong to a character that began before. More of them than a character has are no UTF-8.
    let strays = body
        .iter()
        .take(CHAR_MAX)
        .take_while(|b| is_continuation(**b))
        .count();
    if strays < CHAR_MAX { strays } else { 0 }
}

fn is_continuation(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

/// Bytes of the character that this byte begins; `None` where it begins none.
fn char_width(byte: u8) -> Option<usize> {
    match byte {
        0x00..=0x7f => Some(1),
        0xc2..=0xdf => Some(2),
        0xe0..=0xef => Some(3),
        0xf0..=0xf4 => Some(4),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::log::{Budget, Stream};
    use super::*;

    async fn view(text: &[u8], budget: u64) -> View {
        let dir = tempfile::tempdir().expect("tempdir");
        let all = Budget {
            first: 1 << 30,
            last: 1 << 30,
            step: 1 << 20,
        };
        let log = Arc::new(StreamLog::new(&dir.path().join("run"), Stream::Stdout, all));
        log.append(text);
        let view = View::of(&log, text.len() as u64, budget)
            .await
            .expect("readable");
        assert_eq!(
            view.head.len() as u64 + view.dropped + view.tail.len() as u64,
            view.total
        );
        assert!((view.head.len() + view.tail.len()) as u64 <= budget.max(view.total.min(budget)));
        assert!(text.starts_with(&view.head) && text.ends_with(&view.tail));
        view
    }

    #[tokio::test]
    async fn what_fits_is_all_head() {
        let view = view(b"hello", 5).await;
        assert_eq!(
            (&view.head[..], &view.tail[..], view.dropped),
            (&b"hello"[..], &b""[..], 0)
        );
    }

    #[tokio::test]
    async fn a_budget_of_zero_keeps_none_but_counts() {
        let view = view(b"hello", 0).await;
        assert_eq!(
            (view.head.len(), view.tail.len(), view.total, view.dropped),
            (0, 0, 5, 5)
        );
    }

    #[tokio::test]
    async fn characters_are_never_cut() {
        for symbol in ["é", "€", "𝄞"] {
            let text = symbol.repeat(1000);
            for budget in 1..60 {
                let view = view(text.as_bytes(), budget).await;
                assert!(
                    std::str::from_utf8(&view.head).is_ok()
                        && std::str::from_utf8(&view.tail).is_ok()
                );
            }
        }
    }

    #[tokio::test]
    async fn cuts_fall_at_lines_where_near() {
        let text: String = (0..10_000).map(|i| format!("line {i}\n")).collect();
        let view = view(text.as_bytes(), 1000).await;
        assert!(
            view.head.ends_with(b"\n")
                && view.tail.starts_with(b"line ")
                && view.tail.ends_with(b"9999\n")
        );
        assert!(view.head.len() > 200 && view.tail.len() > 600);
    }

    #[tokio::test]
    async fn a_long_line_keeps_its_end() {
        let text = format!("{}the error", "x".repeat(1 << 20));
        let view = view(text.as_bytes(), 1000).await;
        assert_eq!((view.head.len(), view.tail.len()), (300, 700));
        assert!(view.tail.ends_with(b"the error"));
    }

    #[tokio::test]
    async fn bytes_that_are_no_text_are_cut_anywhere() {
        let view = view(&[0x80; 5000], 1000).await;
        assert_eq!((view.head.len(), view.tail.len()), (300, 700));
    }

    #[tokio::test]
    async fn a_view_shows_the_result_and_not_what_came_later() {
        let dir = tempfile::tempdir().expect("tempdir");
        let log = Arc::new(StreamLog::new(
            &dir.path().join("run"),
            Stream::Stdout,
            super::super::log::BUDGET,
        ));
        log.append(b"done\nlater\n");
        let view = View::of(&log, 5, 100).await.expect("readable");
        assert_eq!(&view.head[..], b"done\n");
    }
}
