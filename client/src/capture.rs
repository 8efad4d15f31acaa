//! One output stream, cut to a budget: its first and its last bytes.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use bytes::Bytes;
use lodge_proto::v1 as pb;

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
}
