//! Searching a run's log for lines, as grep would: bounded in bytes, time and answer, to be gone on with by the caller.
//!
//! It reads what the log has, which is masked, and never waits for more. A gap ends the line before it and any context:
//! lines on its two sides are not neighbours.

use std::io;
use std::ops::Range;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use regex::bytes::{Regex, RegexBuilder};
use tokio::sync::Semaphore;

use super::log::{Piece, Stream, StreamLog};
use super::run::Run;
use super::stream::beyond_the_end;
use crate::error::{Error, Result};

/// The lines around matches, each once.
mod context;
/// A log as lines.
mod lines;

use context::{Context, Matched, Verdict};
use lines::{Lines, Next};

/// Longest pattern, in bytes.
const PATTERN_MAX_BYTES: usize = 1024;
/// Memory of a compiled pattern, and of what it keeps while it searches, in bytes.
const COMPILED_MAX_BYTES: usize = 1 << 20;
const CACHE_MAX_BYTES: usize = 4 << 20;
/// Most lines before and after a match.
const CONTEXT_MAX: u32 = 100;
/// Matches that are returned if the caller does not say, and at most.
const MATCHES_DEFAULT: u32 = 100;
const MATCHES_MAX: u32 = 1000;
/// Bytes that one call searches, and how long it may take: a call is over soon, and leaves its thread to others.
const SEARCHED_MAX_BYTES: u64 = 64 << 20;
const SEARCHED_WITHIN: Duration = Duration::from_secs(1);
/// Searches at once, of all logs. Each keeps a processor busy; half of them are left to everything else.
static SEARCHES: LazyLock<Semaphore> = LazyLock::new(|| {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Semaphore::new((processors / 2).max(1))
});

/// What to search for, as asked.
#[derive(Debug, Clone, Default)]
pub struct RawQuery {
    /// A regular expression.
    pub pattern: String,
    /// Upper and lower case are the same.
    pub ignore_case: bool,
    /// Lines before each match.
    pub before: u32,
    /// Lines after each match.
    pub after: u32,
    /// Matches at most; zero takes the default.
    pub max_matches: u32,
    /// Where to begin.
    pub offset: u64,
}

/// A line of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Offset of its first byte.
    pub offset: u64,
    /// Its first bytes, without its end.
    pub text: Vec<u8>,
    /// It matches; others lie around a match.
    pub matched: bool,
    /// `text` is not the whole line.
    pub truncated: bool,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// The lines, in their order, each once.
    pub lines: Vec<Line>,
    /// Where to go on; `None` if everything that was there was searched.
    pub next_offset: Option<u64>,
    /// Bytes of the stream.
    pub total: u64,
    /// Gaps that were met.
    pub gaps: Vec<Range<u64>>,
}

/// Searches one stream of a run.
pub async fn search(run: &Run, stream: Stream, raw: RawQuery) -> Result<Found> {
    let log = Arc::clone(run.log(stream));
    if raw.offset > log.len() {
        return Err(beyond_the_end(stream, raw.offset, log.len()));
    }
    check(&raw)?;
    let closed = |e| Error::internal("LOG_UNREADABLE", "the search was not begun", e);
    let turn = SEARCHES.acquire().await.map_err(closed)?;
    // Compiling a pattern takes milliseconds too.
    let searched = tokio::task::spawn_blocking(move || {
        // Held by the work and not by the call: a caller who goes away ends only the call.
        let _turn = turn;
        let pattern = compile(&raw)?;
        search_here(&log, &pattern, &raw, Bounds::new()).map_err(unreadable)
    });
    searched
        .await
        .map_err(|e| Error::internal("LOG_UNREADABLE", "the search was ended", e))?
}

fn unreadable(error: io::Error) -> Error {
    Error::internal("LOG_UNREADABLE", "the run's log cannot be read", error)
}

fn check(raw: &RawQuery) -> Result<()> {
    if raw.pattern.len() > PATTERN_MAX_BYTES {
        let (has, may) = (raw.pattern.len(), PATTERN_MAX_BYTES);
        return Err(invalid(format!("it has {has} bytes; it may have {may}")));
    }
    for (name, value, most) in [
        ("before", raw.before, CONTEXT_MAX),
        ("after", raw.after, CONTEXT_MAX),
        ("max_matches", raw.max_matches, MATCHES_MAX),
    ] {
        if value > most {
            return Err(Error::invalid(
                "INVALID_SEARCH",
                format!("{name} is {value}; it may be {most}"),
            ));
        }
    }
    Ok(())
}

fn compile(raw: &RawQuery) -> Result<Regex> {
    let built = RegexBuilder::new(&raw.pattern)
        .case_insensitive(raw.ignore_case)
        .size_limit(COMPILED_MAX_BYTES)
        .dfa_size_limit(CACHE_MAX_BYTES)
        .build();
    built.map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => invalid("it is too large when compiled".to_owned()),
        // Many lines with a picture of the pattern: the last one says what is wrong.
        error => {
            let text = error.to_string();
            let last = text.lines().last().unwrap_or_default();
            invalid(last.trim_start_matches("error: ").to_owned())
        }
    })
}

fn invalid(problem: String) -> Error {
    Error::invalid("INVALID_PATTERN", format!("invalid pattern: {problem}"))
        .hint("it is a regular expression: a backslash before . * + ? ( ) [ ] { } | ^ $ \\ takes them literally")
}

/// How far one call goes.
struct Bounds {
    bytes: u64,
    until: Instant,
}

impl Bounds {
    fn new() -> Self {
        Self {
            bytes: SEARCHED_MAX_BYTES,
            until: Instant::now() + SEARCHED_WITHIN,
        }
    }
}

/// Blocks.
fn search_here(
    log: &StreamLog,
    pattern: &Regex,
    raw: &RawQuery,
    bounds: Bounds,
) -> io::Result<Found> {
    let matches = match raw.max_matches {
        0 => MATCHES_DEFAULT,
        asked => asked,
    };
    let total = log.len();
    let read = |at: u64, limit: usize| {
        let left = usize::try_from(total.saturating_sub(at)).unwrap_or(usize::MAX);
        match limit.min(left) {
            0 => Ok(Piece::End),
            want => log.read_here(at, want),
        }
    };
    let mut lines = Lines::new(read, raw.offset);
    let mut context = Context::new(raw.before, raw.after, matches);
    let mut gaps = Vec::new();
    let next_offset = loop {
        let searched = lines.position() - raw.offset - lengths(&gaps);
        let spent = searched >= bounds.bytes || Instant::now() >= bounds.until;
        // Lines that follow a match are owed with it; they are few.
        if spent && lines.position() > raw.offset && !context.owes() {
            break Some(context.resume_at(lines.position(), raw.offset));
        }
        match lines.next()? {
            Next::End => break None,
            Next::Gap(gap) => {
                gaps.push(gap);
                context.forget();
            }
            Next::Line(line) => {
                let offset = line.offset;
                let matched = match pattern.is_match(line.bytes) {
                    true => Matched::Yes,
                    false => Matched::No,
                };
                if context.take(&line, matched) == Verdict::Full {
                    break Some(context.resume_at(offset, raw.offset));
                }
            }
        }
    };
    Ok(Found {
        lines: context.into_lines(),
        next_offset,
        total,
        gaps,
    })
}

fn lengths(gaps: &[Range<u64>]) -> u64 {
    gaps.iter().map(|gap| gap.end - gap.start).sum()
}

#[cfg(test)]
mod tests;
