//! The lines around matches: overlapping ones are merged, each line is there once, and the answer has a bound.

use std::collections::VecDeque;

use super::Line;
use super::lines::RawLine;

/// Bytes of a line that are returned.
const TEXT_MAX_BYTES: usize = 4096;
/// Bytes of an answer.
const ANSWER_MAX_BYTES: usize = 1 << 20;
/// What a line costs beside its text, in memory and on the wire.
const LINE_COST_BYTES: usize = 32;

/// Whether a line was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It was.
    Taken,
    /// It is for the next answer.
    Full,
}

/// Whether a line is one of those that were searched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Matched {
    Yes,
    No,
}

/// An answer as it grows.
pub(super) struct Context {
    before: usize,
    after: usize,
    matches_left: u32,
    lines: Vec<Line>,
    bytes: usize,
    /// The last lines that are not in the answer, at most `before`.
    recent: VecDeque<Line>,
    /// Lines that the last match is still owed.
    owed: usize,
}

impl Context {
    pub(super) fn new(before: u32, after: u32, matches: u32) -> Self {
        Self {
            before: before as usize,
            after: after as usize,
            matches_left: matches,
            lines: Vec::new(),
            bytes: 0,
            recent: VecDeque::new(),
            owed: 0,
        }
    }

    /// Takes the next line.
    pub(super) fn take(&mut self, raw: &RawLine<'_>, matched: Matched) -> Verdict {
        if matched == Matched::No && self.owed == 0 && self.matches_left == 0 {
            return Verdict::Full;
        }
        match (matched, self.owed) {
            (Matched::Yes, _) => return self.take_match(raw),
            (Matched::No, 0) => self.remember(raw),
            (Matched::No, _) => {
                self.owed -= 1;
                self.push(line(raw, Matched::No));
            }
        }
        Verdict::Taken
    }

    /// Whether lines are still owed to a match.
    pub(super) fn owes(&self) -> bool {
        self.owed > 0
    }

    /// Where the next call has to begin if this one stops before `offset`: with the lines that may be before its first
    /// match, unless that is where this one began.
    pub(super) fn resume_at(&self, offset: u64, began: u64) -> u64 {
        let first = self.recent.front().map(|line| line.offset);
        first.filter(|first| *first > began).unwrap_or(offset)
    }

    /// What comes next has no neighbours before it.
    pub(super) fn forget(&mut self) {
        self.recent.clear();
        self.owed = 0;
    }

    pub(super) fn into_lines(self) -> Vec<Line> {
        self.lines
    }

    fn take_match(&mut self, raw: &RawLine<'_>) -> Verdict {
        let line = line(raw, Matched::Yes);
        let before: usize = self.recent.iter().map(cost).sum();
        let after = self.after * (TEXT_MAX_BYTES + LINE_COST_BYTES);
        // With all that belongs to it, so that a match is never cut off from its context. The first one always fits.
        let fits = self.bytes + before + cost(&line) + after <= ANSWER_MAX_BYTES;
        if self.matches_left == 0 || !(fits || self.lines.is_empty()) {
            return Verdict::Full;
        }
        self.matches_left -= 1;
        self.owed = self.after;
        while let Some(recent) = self.recent.pop_front() {
            self.push(recent);
        }
        self.push(line);
        Verdict::Taken
    }

    fn remember(&mut self, raw: &RawLine<'_>) {
        if self.before == 0 {
            return;
        }
        if self.recent.len() == self.before {
            self.recent.pop_front();
        }
        self.recent.push_back(line(raw, Matched::No));
    }

    fn push(&mut self, line: Line) {
        self.bytes += cost(&line);
        self.lines.push(line);
    }
}

fn line(raw: &RawLine<'_>, matched: Matched) -> Line {
    let shown = raw.bytes.len().min(TEXT_MAX_BYTES);
    Line {
        offset: raw.offset,
        text: raw.bytes[..shown].to_vec(),
        matched: matched == Matched::Yes,
        truncated: raw.partial || shown < raw.bytes.len(),
    }
}

fn cost(line: &Line) -> usize {
    line.text.len() + LINE_COST_BYTES
}
