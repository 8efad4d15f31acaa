//! Tests of `make test`, by the rows that they answer.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail, ensure};
use lodge_tests::redteam::{Row, WEAKEN};
use serde_json::Value;

/// The tests of the workspace, by their names without modules.
pub(crate) struct Suite {
    tests: BTreeSet<String>,
}

impl Suite {
    /// Asks nextest for the names.
    pub(crate) fn list() -> Result<Self> {
        let output = nextest("list")
            .args(["--message-format", "json"])
            .output()
            .context("start cargo nextest")?;
        ensure!(output.status.success(), "{}", told(&output));
        let listed: Value = serde_json::from_slice(&output.stdout).context("nextest's list")?;
        let suites = listed["rust-suites"].as_object().context("suites")?;
        let cases = suites.values().filter_map(|s| s["testcases"].as_object());
        let tests = cases.flat_map(|cases| cases.keys().map(|name| last(name).to_owned()));
        Ok(Self {
            tests: tests.collect(),
        })
    }

    /// Those of a row.
    pub(crate) fn of(&self, row: &Row) -> Vec<&str> {
        let tests = self.tests.iter().map(String::as_str);
        tests.filter(|test| row.has_test(test)).collect()
    }

    /// Runs all tests of these rows; whether each passed, by name.
    pub(crate) fn run(&self, rows: &[&Row]) -> Result<BTreeMap<String, bool>> {
        let tests: BTreeSet<&str> = rows.iter().flat_map(|row| self.of(row)).collect();
        if tests.is_empty() {
            return Ok(BTreeMap::new());
        }
        let output = nextest("run")
            .args([
                "--no-fail-fast",
                "--status-level",
                "all",
                "-E",
                &filter(&tests),
            ])
            .output()
            .context("start cargo nextest")?;
        let results = results(&told(&output));
        for test in tests {
            ensure!(
                results.contains_key(test),
                "nextest told nothing of {test}: {}",
                told(&output)
            );
        }
        Ok(results)
    }

    /// Whether a test passes with these protections switched off.
    pub(crate) fn passes_without(&self, protections: &str, test: &str) -> Result<bool> {
        ensure!(self.tests.contains(test), "there is no test {test}");
        let output = nextest("run")
            .args(["--status-level", "all", "-E", &filter(&[test].into())])
            .env(WEAKEN, protections)
            .output()
            .context("start cargo nextest")?;
        match results(&told(&output)).get(test) {
            Some(passed) => Ok(*passed),
            None => bail!("nextest told nothing of {test}: {}", told(&output)),
        }
    }
}

/// As `make test` builds it.
fn nextest(command: &str) -> Command {
    let mut cargo = Command::new("cargo");
    cargo
        .args(["nextest", command, "--workspace", "--cargo-quiet"])
        .args(["--features", "lodged/fault-points", "--color", "never"]);
    cargo
}

fn filter(tests: &BTreeSet<&str>) -> String {
    let each = tests.iter().map(|test| format!("test(/(^|::){test}$/)"));
    each.collect::<Vec<_>>().join(" + ")
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// What nextest says of each test, a line each: `PASS [   0.1s] (1/9) crate::binary module::test`.
fn results(text: &str) -> BTreeMap<String, bool> {
    let mut results = BTreeMap::new();
    for line in text.lines() {
        let line = line.trim_start();
        let Some((status, rest)) = line.split_once(' ') else {
            continue;
        };
        let is_status = status == "PASS"
            || status == "FAIL"
            || status.starts_with("SIG")
            || status == "TIMEOUT";
        if is_status
            && rest.trim_start().starts_with('[')
            && let Some(name) = rest.rsplit(' ').next()
        {
            let passed = results.entry(last(name).to_owned()).or_insert(true);
            *passed &= status == "PASS";
        }
    }
    results
}

fn last(name: &str) -> &str {
    name.rsplit("::").next().unwrap_or(name)
}
