//! Which rows to try, and what beside them.

use anyhow::{Result, bail};
use lodge_tests::redteam::{self, Row};

/// The command line: `[--no-tests] [--no-controls] [--no-peers] [ID or letter]...`.
#[derive(Debug)]
pub(crate) struct Args {
    /// Run the tests of the rows.
    pub(crate) tests: bool,
    /// See that tests and probes fail without their protections.
    pub(crate) controls: bool,
    /// Try the harmless probes against other runtimes.
    pub(crate) peers: bool,
    wanted: Vec<String>,
}

impl Args {
    /// Parses the arguments after the program's name.
    pub(crate) fn parse(args: impl Iterator<Item = String>) -> Result<Self> {
        let mut parsed = Self {
            tests: true,
            controls: true,
            peers: true,
            wanted: Vec::new(),
        };
        for arg in args {
            match arg.as_str() {
                "--no-tests" => parsed.tests = false,
                "--no-controls" => parsed.controls = false,
                "--no-peers" => parsed.peers = false,
                _ if redteam::all().any(|row| names(&arg, row)) => parsed.wanted.push(arg),
                _ => bail!(
                    "{arg}: neither --no-tests, --no-controls, --no-peers, nor the id or letter of a row, such as E07 or R"
                ),
            }
        }
        Ok(parsed)
    }

    /// Whether this row is asked for.
    pub(crate) fn wants(&self, row: &Row) -> bool {
        self.wanted.is_empty() || self.wanted.iter().any(|name| names(name, row))
    }
}

/// A row has an id and belongs to the group of its letter.
fn names(name: &str, row: &Row) -> bool {
    row.id == name || row.id.get(..1) == Some(name)
}
