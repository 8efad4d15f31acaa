//! What was not made, and why: the first hundred in words, the rest as a number.

use serde::{Deserialize, Serialize};

use crate::image::error::shown;

/// Most lines that are kept: the API promises at most 100.
const LINES_MAX: usize = 100;

/// Entries and attributes that were left out for safety.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::image) struct LeftOut {
    lines: Vec<String>,
    /// How many more there were.
    more: u64,
}

impl LeftOut {
    /// Notes an entry, or an attribute of one.
    pub(super) fn note(&mut self, entry: &[u8], what: impl std::fmt::Display) {
        self.push(format!("{}: {what}", shown(entry)));
    }

    /// Adds those of another layer.
    pub(in crate::image) fn extend(&mut self, other: Self) {
        other.lines.into_iter().for_each(|line| self.push(line));
        self.more += other.more;
    }

    /// The lines, at most 100; the last one counts what did not fit.
    pub(in crate::image) fn into_lines(mut self) -> Vec<String> {
        if self.more > 0 {
            self.lines.truncate(LINES_MAX - 1);
            self.lines.push(format!("and {} more", self.more + 1));
        }
        self.lines
    }

    fn push(&mut self, line: String) {
        if self.lines.len() < LINES_MAX {
            self.lines.push(line);
        } else {
            self.more += 1;
        }
    }
}
