//! The table for people and `target/bench/results.json` for machines.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use lodge_tests::binary;
use serde::Serialize;
use serde_json::Value;

use crate::row::{Compared, Goal, Outcome, Row, Samples};
use crate::rows;
use crate::stats::percentile;

/// Stands in place of the baseline's name where a row has no figures.
const NOT_MEASURED: &str = "not measured";

/// A row with its figures, as it stands in the file. Absent figures are null.
#[derive(Serialize)]
pub(crate) struct Line {
    row: &'static str,
    unit: &'static str,
    p50: Option<f64>,
    p99: Option<f64>,
    baseline: &'static str,
    baseline_p50: Option<f64>,
    /// Lodge / baseline, at the percentile of `ratio_of`.
    ratio: Option<f64>,
    ratio_of: &'static str,
    samples: Vec<f64>,
    baseline_samples: Vec<f64>,
    commit: String,
    host: String,
    #[serde(skip)]
    goal: Goal,
    #[serde(skip)]
    reason: String,
}

impl Line {
    /// Works the figures out.
    pub(crate) fn new(row: &Row, outcome: Outcome) -> Self {
        let (samples, baseline, reason) = match outcome {
            Outcome::Measured(samples) => (samples, row.baseline, String::new()),
            Outcome::NotMeasured(reason) => (Samples::default(), NOT_MEASURED, reason),
        };
        let (percent, ratio_of) = match row.compared {
            Compared::P50 => (50, "p50"),
            Compared::P99 => (99, "p99"),
        };
        let ratio = percentile(&samples.own, percent)
            .zip(percentile(&samples.baseline, percent))
            .map(|(own, baseline)| own / baseline);
        Self {
            row: row.name,
            unit: row.unit,
            p50: percentile(&samples.own, 50),
            p99: percentile(&samples.own, 99),
            baseline,
            baseline_p50: percentile(&samples.baseline, 50),
            ratio,
            ratio_of,
            samples: samples.own,
            baseline_samples: samples.baseline,
            commit: commit(),
            host: host(),
            goal: row.goal,
            reason,
        }
    }

    /// What the goal says, and whether it is met.
    fn verdict(&self) -> String {
        let Some(p50) = self.p50 else {
            return self.reason.clone();
        };
        let ratio = || self.ratio.unwrap_or(f64::NAN);
        let (goal, met) = match self.goal {
            Goal::Ceiling(most) => (format!("≤ {most:.3}"), ratio() <= most),
            Goal::Floor(least) => (format!("≥ {least:.3}"), ratio() >= least),
            Goal::KibCeiling(most) => (format!("≤ {most:.0} KiB"), p50 <= most),
            Goal::MillisCeiling(most) => (format!("≤ {most:.0} ms"), p50 <= most),
            Goal::None => return "none".into(),
        };
        format!("{goal} {}", if met { "met" } else { "MISSED" })
    }
}

/// Writes all lines so far. Rows of an earlier run that this one has not measured stay, each with the commit that it was of.
pub(crate) fn write(lines: &[Line]) -> Result<()> {
    let dir = binary::target_dir()?.join("bench");
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    let path = dir.join("results.json");
    let mut rows: Vec<Value> = earlier(&path, lines);
    for line in lines {
        rows.push(serde_json::to_value(line).context("encode a row")?);
    }
    rows.sort_by_key(|row| rows::ALL.iter().position(|known| row["row"] == known.name));
    let json = serde_json::to_vec_pretty(&rows).context("encode the results")?;
    fs::write(&path, json).with_context(|| format!("write {}", path.display()))
}

/// Rows in the file that are still known and not among `lines`; none where the file is missing or is not ours.
fn earlier(path: &Path, lines: &[Line]) -> Vec<Value> {
    let text = fs::read(path).unwrap_or_default();
    let rows: Vec<Value> = serde_json::from_slice(&text).unwrap_or_default();
    let stays = |row: &Value| {
        rows::ALL.iter().any(|known| row["row"] == known.name)
            && lines.iter().all(|line| row["row"] != line.row)
    };
    rows.into_iter().filter(stays).collect()
}

/// The table.
pub(crate) fn table(lines: &[Line]) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "{:<34} {:>6} {:>10} {:>10} {:>12} {:>8} {:>5}  {:<16} baseline",
        "row", "unit", "p50", "p99", "baseline p50", "ratio", "n", "goal"
    );
    for line in lines {
        let _ = writeln!(
            out,
            "{:<34} {:>6} {:>10} {:>10} {:>12} {:>8} {:>5}  {:<16} {}",
            line.row,
            line.unit,
            figure(line.p50),
            figure(line.p99),
            figure(line.baseline_p50),
            figure(line.ratio),
            line.samples.len(),
            line.verdict(),
            line.baseline
        );
    }
    out
}

/// A number with what precision it deserves.
fn figure(value: Option<f64>) -> String {
    match value {
        None => "–".into(),
        Some(v) if v >= 100.0 => format!("{v:.0}"),
        Some(v) if v >= 1.0 => format!("{v:.2}"),
        Some(v) => format!("{v:.4}"),
    }
}

/// The commit that was measured, with `+` where the tree differs from it.
fn commit() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(id) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".into();
    };
    let clean =
        git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|s| s.is_empty());
    if clean { id } else { format!("{id}+") }
}

/// What the host is, without its name: kernel, processor, how many of them.
fn host() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find_map(|l| {
            l.strip_prefix("model name")?
                .split_once(':')
                .map(|(_, name)| name.trim())
        })
        .unwrap_or("unknown processor");
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    format!("linux {}, {model}, {cpus} cpus", kernel.trim())
}
