//! Which load, how long, and from which seed.

use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// Minutes of mixed load, unless asked otherwise.
const DEFAULT_MINUTES: u64 = 10;
/// Ends a mistyped number: a week.
const MAX_MINUTES: u64 = 7 * 24 * 60;

/// What is done to the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Everything, with kills of the daemon, for so long.
    Mixed(Duration),
    /// So many sandboxes are created, used and deleted.
    Cycles(u64),
    /// One busy sandbox is frozen and thawed so many times.
    Freezes(u64),
}

/// How the result is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// A table for people.
    Table,
    /// JSON, with every sample.
    Json,
}

/// The command line: `[--minutes N | --cycles N | --freezes N] [--seed N] [--json]`.
#[derive(Debug)]
pub(crate) struct Args {
    pub(crate) kind: Kind,
    pub(crate) seed: u64,
    pub(crate) format: Format,
}

impl Args {
    /// Parses the arguments after the program's name.
    pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Self> {
        let mut parsed = Self {
            kind: Kind::Mixed(Duration::from_secs(DEFAULT_MINUTES * 60)),
            seed: u64::from(std::process::id()),
            format: Format::Table,
        };
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--minutes" => parsed.kind = Kind::Mixed(minutes(number(&arg, args.next())?)?),
                "--cycles" => parsed.kind = Kind::Cycles(number(&arg, args.next())?),
                "--freezes" => parsed.kind = Kind::Freezes(number(&arg, args.next())?),
                "--seed" => parsed.seed = number(&arg, args.next())?,
                "--json" => parsed.format = Format::Json,
                other => bail!(
                    "unknown argument `{other}`; \
                     usage: soak [--minutes N | --cycles N | --freezes N] [--seed N] [--json]"
                ),
            }
        }
        Ok(parsed)
    }
}

fn number<T: FromStr<Err: Into<anyhow::Error>>>(arg: &str, value: Option<String>) -> Result<T> {
    let value = value.with_context(|| format!("{arg} needs a number"))?;
    let parsed = value.parse().map_err(Into::into);
    parsed.with_context(|| format!("{arg} {value}"))
}

fn minutes(minutes: u64) -> Result<Duration> {
    ensure!(
        (1..=MAX_MINUTES).contains(&minutes),
        "--minutes takes 1 to {MAX_MINUTES}"
    );
    Ok(Duration::from_secs(minutes * 60))
}
