//! `--grep` and its kin: lines of a run's log that match, found by the daemon and shown as grep(1) shows them.

use std::io;
use std::process::ExitCode;

use anyhow::Result;
use lodge_client::{LogLine, Search, StdStream};

use crate::{follow, terminal};

/// Matches per call; the API's maximum.
const MATCHES_PER_CALL: u32 = 1000;
/// The exit code where no line matches, as grep(1) has it.
const NO_MATCH: u8 = 1;

/// The options of it.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Only lines that match this regular expression
    #[arg(long = "grep", value_name = "PATTERN", conflicts_with_all = ["tail", "follow"])]
    pub(crate) pattern: Option<String>,
    /// Upper and lower case are the same
    #[arg(short, long, requires = "pattern")]
    ignore_case: bool,
    /// Lines before each match, at most 100
    #[arg(short = 'B', long, value_name = "LINES", requires = "pattern")]
    before: Option<u32>,
    /// Lines after each match, at most 100
    #[arg(short = 'A', long, value_name = "LINES", requires = "pattern")]
    after: Option<u32>,
    /// Lines before and after each match, at most 100
    #[arg(short = 'C', long, value_name = "LINES", requires = "pattern")]
    context: Option<u32>,
}

impl Options {
    /// Prints all that is found.
    pub(crate) async fn print(&self, search: Search, stream: StdStream) -> Result<ExitCode> {
        let lines = |own: Option<u32>| own.or(self.context).unwrap_or(0);
        let (before, after) = (lines(self.before), lines(self.after));
        let mut search = search
            .before(before)
            .after(after)
            .max_matches(MATCHES_PER_CALL);
        if self.ignore_case {
            search = search.ignore_case();
        }
        let mut shown = Shown {
            groups: before + after > 0,
            ..Shown::default()
        };
        loop {
            let found = search.clone().await?;
            for gap in &found.gaps {
                follow::tell_gap(stream, gap.end - gap.start);
            }
            for line in &found.lines {
                shown.print(line)?;
            }
            match found.next_offset {
                Some(next) => search = search.offset(next),
                None => return Ok(shown.exit_code()),
            }
        }
    }
}

/// What was printed until now.
#[derive(Debug, Default)]
struct Shown {
    /// Lines that are not neighbours are set apart.
    groups: bool,
    matches: u64,
    /// Where the next line begins if it is the neighbour of the last one.
    next: Option<u64>,
}

impl Shown {
    fn print(&mut self, line: &LogLine) -> Result<()> {
        let mut text = Vec::with_capacity(line.text.len() + 8);
        if self.groups && self.next.is_some_and(|next| next < line.offset) {
            text.extend_from_slice(b"--\n");
        }
        text.extend_from_slice(&line.text);
        text.push(b'\n');
        terminal::raw(&mut io::stdout().lock(), &text)?;
        self.matches += u64::from(line.matched);
        // Of a line that is cut the end is not known; the next one counts as its neighbour.
        let end = line.offset + line.text.len() as u64 + 1;
        self.next = Some(end).filter(|_| !line.truncated);
        Ok(())
    }

    fn exit_code(&self) -> ExitCode {
        match self.matches {
            0 => ExitCode::from(NO_MATCH),
            _ => ExitCode::SUCCESS,
        }
    }
}
