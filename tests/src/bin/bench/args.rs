//! Which rows to measure and how many samples each gets.

use anyhow::{Context, Result, bail, ensure};

use crate::rows;

/// Samples of a row, unless asked otherwise: enough that a p99 is more than the worst one.
const DEFAULT_SAMPLES: usize = 200;
/// Ends a mistyped number.
const MAX_SAMPLES: usize = 100_000;

/// The command line: `[--samples N] [ROW]...`.
#[derive(Debug)]
pub(crate) struct Args {
    /// Samples per side of a row.
    pub(crate) samples: usize,
    rows: Vec<String>,
}

impl Args {
    /// Parses the arguments after the program's name.
    pub(crate) fn parse(args: impl Iterator<Item = String>) -> Result<Self> {
        let mut parsed = Self {
            samples: DEFAULT_SAMPLES,
            rows: Vec::new(),
        };
        let mut args = args;
        while let Some(arg) = args.next() {
            if arg == "--samples" {
                let value = args.next().context("--samples needs a number")?;
                parsed.samples = value
                    .parse()
                    .with_context(|| format!("--samples {value}"))?;
            } else if rows::ALL.iter().any(|row| row.name == arg) {
                parsed.rows.push(arg);
            } else {
                let known: Vec<&str> = rows::ALL.iter().map(|row| row.name).collect();
                bail!("no row `{arg}`; rows are {}", known.join(", "));
            }
        }
        ensure!(
            (1..=MAX_SAMPLES).contains(&parsed.samples),
            "--samples takes 1 to {MAX_SAMPLES}"
        );
        Ok(parsed)
    }

    /// Whether this row is asked for.
    pub(crate) fn wants(&self, row: &str) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|name| name == row)
    }
}
