//! One output stream, cut to a budget: its first and its last bytes.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt::{self, Write as _};

use bytes::Bytes;
use lodge_proto::v1 as pb;

use crate::error::{Error, Result};

/// The share of the budget that the first bytes get, in per cent; the same as the server's.
const HEAD_PER_CENT: u64 = 30;

/// What a run wrote to one stream, or its first and last bytes where that was more than the budget.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Captured {
    /// The first bytes; all of them where nothing was dropped.
    pub head: Bytes,
    /// The last bytes; empty where nothing was dropped.
    pub tail: Bytes,
    /// Bytes that the run wrote. Exact.
    pub total_bytes: u64,
    /// Bytes between `head` and `tail`. Exact.
    pub dropped_bytes: u64,
}

/// A stream's output as text for a person or a model. Displays as the text.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Text {
    /// The text. Where bytes were dropped it has a line `[… N bytes dropped …]`.
    pub text: String,
    /// Byte sequences that are not UTF-8, each replaced by U+FFFD. (A U+FFFD that the run wrote is not counted.)
    pub replacements: usize,
}

impl Captured {
    /// Whether bytes were dropped.
    pub fn truncated(&self) -> bool {
        self.dropped_bytes > 0
    }

    /// The bytes: all of them, or, where [`truncated`](Self::truncated), head and tail joined without any mark.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        match self.tail.is_empty() {
            true => Cow::Borrowed(&self.head),
            false => Cow::Owned([&self.head[..], &self.tail[..]].concat()),
        }
    }

    /// The text. Never fails: what is not UTF-8 is replaced and counted, and a cut is shown.
    pub fn text(&self) -> Text {
        let mut text = Text {
            text: String::with_capacity(self.head.len()),
            replacements: 0,
        };
        text.push(&self.head);
        if self.truncated() {
            text.push_cut(self.dropped_bytes);
            text.push(&self.tail);
        }
        text
    }

    pub(crate) fn from_wire(output: pb::Output) -> Self {
        Self {
            head: output.head,
            tail: output.tail,
            total_bytes: output.total_bytes,
            dropped_bytes: output.dropped_bytes,
        }
    }
}

impl Text {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    fn push(&mut self, bytes: &[u8]) {
        for chunk in bytes.utf8_chunks() {
            self.text.push_str(chunk.valid());
            if !chunk.invalid().is_empty() {
                self.text.push(char::REPLACEMENT_CHARACTER);
                self.replacements += 1;
            }
        }
    }

    fn push_cut(&mut self, dropped: u64) {
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push('\n');
        }
        writeln!(self.text, "[… {dropped} bytes dropped …]").expect("a String takes all writes");
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Cuts a stream that comes in pieces to a budget, as the server does for a unary run.
#[derive(Debug)]
pub(crate) struct Collector {
    head_budget: usize,
    tail_budget: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    /// Offset of the first byte that has not been seen. `tail` ends there.
    position: u64,
}

impl Collector {
    pub(crate) fn new(budget: u64) -> Self {
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
    pub(crate) fn push(&mut self, offset: u64, mut data: &[u8]) {
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
    pub(crate) fn skip_to(&mut self, offset: u64) {
        self.tail.clear();
        self.position = offset;
    }

    /// `total` is what the run's result says. What did not come until then counts as dropped.
    pub(crate) fn finish(mut self, total: u64) -> Result<Captured> {
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

    fn whole(bytes: &'static [u8]) -> Captured {
        let total_bytes = bytes.len() as u64;
        Captured {
            head: Bytes::from_static(bytes),
            total_bytes,
            ..Captured::default()
        }
    }

    /// Cuts `bytes`, pushed in pieces of `piece`, to `budget`.
    fn cut(bytes: &[u8], piece: usize, budget: u64) -> Captured {
        let mut collector = Collector::new(budget);
        for (index, data) in bytes.chunks(piece).enumerate() {
            collector.push((index * piece) as u64, data);
        }
        collector.finish(bytes.len() as u64).unwrap()
    }

    #[test]
    fn text_of_utf8_is_exact() {
        let captured = whole("a\n\n\nb «ü» \0".as_bytes());
        let expected = Text {
            text: "a\n\n\nb «ü» \0".into(),
            replacements: 0,
        };
        assert_eq!(captured.text(), expected);
        assert_eq!(captured.bytes(), &captured.head[..]);
    }

    #[test]
    fn text_counts_what_it_replaces_and_not_what_was_replaced_before() {
        let text = whole(b"\xff ok \xe2\x82 \xef\xbf\xbd").text();
        assert_eq!(text.as_str(), "\u{fffd} ok \u{fffd} \u{fffd}");
        assert_eq!(text.replacements, 2);
    }

    #[test]
    fn text_shows_where_bytes_were_dropped() {
        let captured = Captured {
            head: Bytes::from_static(b"begin"),
            tail: Bytes::from_static(b"end\n"),
            total_bytes: 109,
            dropped_bytes: 100,
        };
        assert_eq!(
            captured.text().to_string(),
            "begin\n[… 100 bytes dropped …]\nend\n"
        );
        assert!(captured.truncated());
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
