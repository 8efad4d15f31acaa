//! Cuts a run's streamed output to a budget, as the server does for a unary run.

use std::collections::VecDeque;

use crate::capture::Captured;
use crate::error::{Error, Result};
use crate::outcome::{Outcome, Output};
use crate::stream::StdStream;

/// The share of the budget that the first bytes get, in per cent; the same as the server's.
const HEAD_PER_CENT: u64 = 30;

/// Bytes kept of each stream where the caller does not say; the same as the server's default.
pub(crate) const DEFAULT_OUTPUT_BYTES: u64 = 1 << 20;
/// The most bytes that are kept of each stream of a run; the same as the server's maximum.
pub const MAX_OUTPUT_BYTES: u64 = 8 << 20;

/// Refuses to keep more than [`MAX_OUTPUT_BYTES`].
pub(crate) fn check_budget(bytes: u64) -> Result<()> {
    if bytes > MAX_OUTPUT_BYTES {
        return Err(Error::Argument {
            what: "output budget",
            problem: "it is above 8 MiB",
        });
    }
    Ok(())
}

/// Both output streams of a run.
#[derive(Debug)]
pub(crate) struct Collected {
    stdout: Collector,
    stderr: Collector,
}

impl Collected {
    /// `budget` is for each stream, in bytes; at most [`MAX_OUTPUT_BYTES`].
    pub(crate) fn new(budget: u64) -> Result<Self> {
        check_budget(budget)?;
        Ok(Self {
            stdout: Collector::new(budget),
            stderr: Collector::new(budget),
        })
    }

    pub(crate) fn push(&mut self, stream: StdStream, offset: u64, data: &[u8]) {
        self.of(stream).push(offset, data);
    }

    /// The bytes before `offset` that did not come yet will not come.
    pub(crate) fn skip_to(&mut self, stream: StdStream, offset: u64) {
        self.of(stream).skip_to(offset);
    }

    pub(crate) fn finish(self, outcome: Outcome) -> Result<Output> {
        let stdout = self.stdout.finish(outcome.stdout_bytes)?;
        let stderr = self.stderr.finish(outcome.stderr_bytes)?;
        Ok(Output {
            outcome,
            stdout,
            stderr,
        })
    }

    fn of(&mut self, stream: StdStream) -> &mut Collector {
        match stream {
            StdStream::Stdout => &mut self.stdout,
            StdStream::Stderr => &mut self.stderr,
        }
    }
}

/// One of them.
#[derive(Debug)]
struct Collector {
    head_budget: usize,
    tail_budget: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    /// Offset of the first byte that has not been seen. `tail` ends there.
    position: u64,
}

impl Collector {
    fn new(budget: u64) -> Self {
        let head_budget = budget * HEAD_PER_CENT / 100;
        let size = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        Self {
            head_budget: size(head_budget),
            tail_budget: size(budget - head_budget),
            head: Vec::new(),
            tail: VecDeque::new(),
            position: 0,
        }
    }

    /// Takes the bytes at `offset`. A jump ahead is a gap; nothing before the gap can be part of the tail.
    fn push(&mut self, offset: u64, mut data: &[u8]) {
        if offset != self.position {
            self.skip_to(offset);
        }
        self.position += data.len() as u64;
        if self.tail.is_empty() && self.head.len() as u64 == offset {
            let room = self
                .head_budget
                .saturating_sub(self.head.len())
                .min(data.len());
            self.head.extend_from_slice(&data[..room]);
            data = &data[room..];
        }
        if data.is_empty() {
            return;
        }
        self.tail.extend(data);
        let excess = self.tail.len().saturating_sub(self.tail_budget);
        self.tail.drain(..excess);
    }

    /// The bytes before `offset` will not come.
    fn skip_to(&mut self, offset: u64) {
        self.tail.clear();
        self.position = offset;
    }

    /// `total` is what the run's result says. What did not come until then counts as dropped.
    fn finish(mut self, total: u64) -> Result<Captured> {
        if self.position > total {
            return Err(Error::Protocol {
                what: "a run wrote less than what came of it",
            });
        }
        if self.position < total {
            self.skip_to(total);
        }
        let mut tail = Vec::from(self.tail);
        let mut dropped = total - tail.len() as u64 - self.head.len() as u64;
        if dropped == 0 {
            self.head.append(&mut tail);
        } else {
            let before = self.head.len() + tail.len();
            self.head.truncate(character_end(&self.head));
            tail.drain(..character_start(&tail));
            dropped += (before - self.head.len() - tail.len()) as u64;
        }
        Ok(Captured {
            head: self.head.into(),
            tail: tail.into(),
            total_bytes: total,
            dropped_bytes: dropped,
        })
    }
}

/// Where the last complete character of `bytes` ends, if they end in the middle of one.
fn character_end(bytes: &[u8]) -> usize {
    // An incomplete character has at most three bytes.
    let lead = bytes.iter().rev().take(3).position(|b| b & 0xC0 != 0x80);
    match lead.map(|back| bytes.len() - 1 - back) {
        Some(start) if start + character_width(bytes[start]) > bytes.len() => start,
        _ => bytes.len(),
    }
}

/// Where the first character of `bytes` starts, if they start in the middle of one.
fn character_start(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .take(3)
        .take_while(|b| *b & 0xC0 == 0x80)
        .count()
}

/// Bytes of the character that starts with `lead`; 1 for what starts none.
fn character_width(lead: u8) -> usize {
    match lead {
        0xC2..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xF4 => 4,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cuts `bytes`, pushed in pieces of `piece`, to `budget`.
    fn cut(bytes: &[u8], piece: usize, budget: u64) -> Captured {
        let mut collector = Collector::new(budget);
        for (index, data) in bytes.chunks(piece).enumerate() {
            collector.push((index * piece) as u64, data);
        }
        collector.finish(bytes.len() as u64).unwrap()
    }

    #[test]
    fn output_within_the_budget_is_whole() {
        for piece in [1, 3, 7, 100] {
            let captured = cut(b"0123456789", piece, 10);
            assert_eq!(&captured.head[..], b"0123456789");
            assert!(captured.tail.is_empty() && !captured.truncated());
        }
    }

    #[test]
    fn output_beyond_the_budget_keeps_its_beginning_and_its_end() {
        for piece in [1, 3, 7, 100] {
            let captured = cut(b"0123456789abcdefghij", piece, 10);
            assert_eq!(
                (&captured.head[..], &captured.tail[..]),
                (&b"012"[..], &b"defghij"[..])
            );
            assert_eq!((captured.total_bytes, captured.dropped_bytes), (20, 10));
        }
    }

    #[test]
    fn a_cut_is_never_inside_a_character() {
        let text = "€".repeat(100);
        for budget in 0..300 {
            let captured = cut(text.as_bytes(), 7, budget);
            assert_eq!(captured.text().replacements, 0, "budget {budget}");
            let kept = (captured.head.len() + captured.tail.len()) as u64;
            assert_eq!(kept + captured.dropped_bytes, captured.total_bytes);
            assert!(kept <= budget);
        }
    }

    #[test]
    fn a_gap_counts_as_dropped() {
        let mut collector = Collector::new(100);
        collector.push(0, b"first");
        collector.skip_to(50);
        collector.push(50, b"last");
        let captured = collector.finish(60).unwrap();
        assert_eq!(
            (&captured.head[..], &captured.tail[..]),
            (&b"first"[..], &b""[..])
        );
        assert_eq!(captured.dropped_bytes, 55);
    }

    #[test]
    fn a_total_below_what_came_is_an_error() {
        let mut collector = Collector::new(100);
        collector.push(0, b"first");
        assert!(collector.finish(4).is_err());
    }
}
