//! Replaces the literal bytes of secret values by `«NAME»` in a stream, also where a value is split over chunks.
//!
//! At each place the longest value wins, leftmost first. What might still become a value is held back: exactly the
//! longest suffix that a value begins with. Encoded forms of a value (base64, URL) are not recognised: documented.

use std::sync::Arc;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use zeroize::{Zeroize, Zeroizing};

use super::environment::Secret;

/// Above this, in bytes of all values together, a table of all transitions (DFA) is not built: for values that repeat
/// themselves that takes time by the square of their length, measured as 0.1 s for 4 KiB and 7 s for 32 KiB.
const DFA_MAX_BYTES: usize = 512;

/// The secrets of a run, ready to be found. Shared by its two streams.
pub(super) struct Patterns {
    finder: AhoCorasick,
    values: Vec<Value>,
    replacements: Vec<Vec<u8>>,
}

/// One value, with its failure table (Knuth, Morris and Pratt): `fallback[i]` is the length of the longest proper
/// prefix of the value that is a suffix of its first `i + 1` bytes.
struct Value {
    bytes: Zeroizing<Vec<u8>>,
    fallback: Vec<u32>,
}

impl Patterns {
    /// Prepares the secrets of a call. Fails only if their tables would not fit into memory.
    pub(super) fn new(secrets: &[Secret]) -> Result<Self, aho_corasick::BuildError> {
        let bytes: usize = secrets.iter().map(|s| s.value.len()).sum();
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .kind((bytes > DFA_MAX_BYTES).then_some(AhoCorasickKind::ContiguousNFA))
            .build(secrets.iter().map(|s| s.value.as_bytes()))?;
        let values = secrets
            .iter()
            .map(|s| Value::new(s.value.as_bytes()))
            .collect();
        let replacements = secrets
            .iter()
            .map(|s| format!("«{}»", s.name).into_bytes())
            .collect();
        Ok(Self {
            finder,
            values,
            replacements,
        })
    }

    /// A whole text, masked.
    pub(super) fn in_text(self: &Arc<Self>, text: &str) -> String {
        let (mut masker, mut out) = (Masker::new(Arc::clone(self)), Vec::new());
        masker.push(text.as_bytes(), &mut out);
        masker.flush(&mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    /// A text whose end was cut off, masked; an end that a value may have begun with is left out.
    pub(super) fn in_cut_text(self: &Arc<Self>, text: &str) -> String {
        let mut out = Vec::new();
        Masker::new(Arc::clone(self)).push(text.as_bytes(), &mut out);
        String::from_utf8_lossy(&out).into_owned()
    }

    /// Where the longest suffix of `text` begins that is a proper prefix of a value; its length if there is none.
    fn hold_start(&self, text: &[u8]) -> usize {
        let held = self
            .values
            .iter()
            .map(|v| v.overlap(text))
            .max()
            .unwrap_or(0);
        text.len() - held
    }
}

impl Value {
    fn new(bytes: &[u8]) -> Self {
        let mut fallback = vec![0u32; bytes.len()];
        let mut matched = 0usize;
        for i in 1..bytes.len() {
            while matched > 0 && bytes[i] != bytes[matched] {
                matched = fallback[matched - 1] as usize;
            }
            matched += usize::from(bytes[i] == bytes[matched]);
            fallback[i] = u32::try_from(matched).expect("a value is shorter than 128 KiB");
        }
        Self {
            bytes: Zeroizing::new(bytes.to_vec()),
            fallback,
        }
    }

    /// Length of the longest suffix of `text` that is a proper prefix of this value.
    fn overlap(&self, text: &[u8]) -> usize {
        let last = self.bytes.len() - 1;
        let mut matched = 0usize;
        for byte in &text[text.len().saturating_sub(last)..] {
            // Shorter than the value by construction, so `matched` never reaches its end.
            while matched > 0 && *byte != self.bytes[matched] {
                matched = self.fallback[matched - 1] as usize;
            }
            matched += usize::from(*byte == self.bytes[matched]);
        }
        matched
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.fallback.zeroize();
    }
}

/// Masks one stream.
pub(super) struct Masker {
    patterns: Arc<Patterns>,
    /// Bytes that might still become a value.
    held: Zeroizing<Vec<u8>>,
}

impl Masker {
    /// A masker at a place where no value has begun.
    pub(super) fn new(patterns: Arc<Patterns>) -> Self {
        Self {
            patterns,
            held: Zeroizing::default(),
        }
    }

    /// Bytes held back now.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// Takes the next bytes of the stream and adds to `out` what is certain by now.
    pub(super) fn push(&mut self, chunk: &[u8], out: &mut Vec<u8>) {
        let mut text = Zeroizing::new(Vec::with_capacity(self.held.len() + chunk.len()));
        text.extend_from_slice(&self.held);
        text.extend_from_slice(chunk);
        self.held.zeroize();
        let kept_from = self.mask_certain(&text, out);
        self.held.extend_from_slice(&text[kept_from..]);
    }

    /// The stream has ended: what was held back is no value.
    pub(super) fn flush(&mut self, out: &mut Vec<u8>) {
        let text = std::mem::take(&mut self.held);
        mask_all(&self.patterns, &text, out);
    }

    /// Masks what no further byte can change and says where the rest begins.
    ///
    /// A match that begins before the held suffix cannot become a longer one: else the text from its start would be a
    /// proper prefix of a value, and so be held. It may reach into the suffix, which then has to be found anew.
    fn mask_certain(&self, text: &[u8], out: &mut Vec<u8>) -> usize {
        let mut at = 0;
        let mut hold = self.patterns.hold_start(text);
        while let Some(found) = self.patterns.finder.find(&text[at..]) {
            let (start, end) = (at + found.start(), at + found.end());
            if start >= hold {
                break;
            }
            out.extend_from_slice(&text[at..start]);
            out.extend_from_slice(&self.patterns.replacements[found.pattern().as_usize()]);
            at = end;
            if hold < at {
                hold = at + self.patterns.hold_start(&text[at..]);
            }
        }
        out.extend_from_slice(&text[at..hold]);
        hold
    }
}

fn mask_all(patterns: &Patterns, text: &[u8], out: &mut Vec<u8>) {
    let mut at = 0;
    for found in patterns.finder.find_iter(text) {
        out.extend_from_slice(&text[at..found.start()]);
        out.extend_from_slice(&patterns.replacements[found.pattern().as_usize()]);
        at = found.end();
    }
    out.extend_from_slice(&text[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(values: &[&str]) -> Arc<Patterns> {
        let secrets: Vec<Secret> = (b'A'..)
            .zip(values)
            .map(|(name, value)| Secret {
                name: char::from(name).to_string(),
                value: Zeroizing::new((*value).to_owned()),
            })
            .collect();
        Arc::new(Patterns::new(&secrets).expect("small"))
    }

    fn masked(patterns: &Arc<Patterns>, chunks: &[&[u8]]) -> Vec<u8> {
        let mut masker = Masker::new(Arc::clone(patterns));
        let mut out = Vec::new();
        for chunk in chunks {
            masker.push(chunk, &mut out);
        }
        masker.flush(&mut out);
        out
    }

    #[test]
    fn a_long_value_of_one_byte_is_prepared_and_found() {
        let long = "x".repeat(130_000);
        let patterns = patterns(&[&long, "hunter2!"]);
        let text = format!("a{long}b hunter2! {}", &long[1..]);
        let expected = format!("a«A»b «B» {}", &long[1..]);
        let found = masked(&patterns, &[text.as_bytes()]);
        assert!(found == expected.as_bytes(), "{} bytes", found.len());
    }

    /// Values that overlap each other and themselves, and texts full of near misses.
    const VALUES: &[&[&str]] = &[
        &["hunter2!"],
        &["abcd", "abcdef", "cdefgh"],
        &["aaaa", "aaaaaaa"],
        &["abab", "babab", "bbbb"],
        &["s3cr3t", "s3cr3ts3cr3t", "t\nx1"],
    ];
    const TEXTS: &[&str] = &[
        "",
        "nothing here",
        "hunter2!hunter2hunter2!!",
        "abcdefghabcdabcdeabcdefgh",
        "aaaaaaaaaaaaaaaaaaaaa",
        "abababababbbbbabab",
        "s3cr3ts3cr3s3cr3ts3cr3t\nx1 s3cr3t\nx",
        "hunter2",
    ];

    #[test]
    fn every_split_gives_what_the_whole_gives() {
        for values in VALUES {
            let patterns = patterns(values);
            for text in TEXTS.iter().map(|t| t.as_bytes()) {
                let mut whole = Vec::new();
                mask_all(&patterns, text, &mut whole);
                for i in 0..=text.len() {
                    for j in i..=text.len() {
                        let parts = [&text[..i], &text[i..j], &text[j..]];
                        assert_eq!(
                            masked(&patterns, &parts),
                            whole,
                            "{values:?} {text:?} at {i} and {j}"
                        );
                    }
                }
                let bytes: Vec<&[u8]> = text.chunks(1).collect();
                assert_eq!(masked(&patterns, &bytes), whole);
            }
        }
    }

    #[test]
    fn only_the_longest_possible_beginning_is_held_back() {
        let patterns = patterns(&["abcd", "cdefgh"]);
        let hold = |text: &str| text.len() - patterns.hold_start(text.as_bytes());
        assert_eq!(hold("xxabc"), 3);
        assert_eq!(hold("xxabcd"), 2);
        assert_eq!(hold("xxcdefg"), 5);
        assert_eq!(hold("xx"), 0);
        assert_eq!(hold(""), 0);
    }

    #[test]
    fn text_without_a_beginning_of_a_value_passes_at_once() {
        let mut masker = Masker::new(patterns(&["hunter2!"]));
        let mut out = Vec::new();
        masker.push(b"prompt> ", &mut out);
        assert_eq!((out.as_slice(), masker.held()), (&b"prompt> "[..], 0));
        masker.push(b"hunter", &mut out);
        assert_eq!((out.as_slice(), masker.held()), (&b"prompt> "[..], 6));
        masker.flush(&mut out);
        assert_eq!(out, b"prompt> hunter");
    }

    #[test]
    fn no_value_is_left_in_the_output() {
        for values in VALUES {
            let patterns = patterns(values);
            for text in TEXTS {
                let out = masked(&patterns, &[text.as_bytes()]);
                let out = String::from_utf8(out).expect("text in, text out");
                assert!(
                    values.iter().all(|v| !out.contains(v)),
                    "{values:?} in {out:?}"
                );
            }
        }
    }

    #[test]
    fn a_cut_text_shows_no_beginning_of_a_value() {
        let patterns = patterns(&["hunter2!", "abcab"]);
        assert_eq!(patterns.in_text("/a/hunter2!/hunt"), "/a/«A»/hunt");
        assert_eq!(patterns.in_cut_text("/a/hunter2!/hunt"), "/a/«A»/");
        assert_eq!(patterns.in_cut_text("/abcab"), "/«B»");
    }

    #[test]
    fn two_names_of_one_value_show_the_first() {
        let patterns = patterns(&["same", "same"]);
        assert_eq!(masked(&patterns, &[b"x same y"]), "x «A» y".as_bytes());
    }
}
