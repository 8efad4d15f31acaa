//! What came of it, as a table.

use std::collections::BTreeMap;

use anyhow::Result;
use lodge_tests::redteam::{Instead, Row};

use crate::peers::Held;

/// Whether something held, and why not.
#[derive(Debug)]
pub(crate) struct Outcome(Result<(), String>);

impl Outcome {
    /// From what was tried.
    pub(crate) fn of(tried: Result<()>) -> Self {
        Self(tried.map_err(|error| format!("{error:#}")))
    }
}

/// Something without protections.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) protections: String,
    pub(crate) outcome: Outcome,
}

/// What came of a row.
#[derive(Debug)]
pub(crate) struct Line {
    row: &'static Row,
    pub(crate) tests: Vec<String>,
    pub(crate) probe: Option<Outcome>,
    pub(crate) controls: Vec<Control>,
    pub(crate) peers: Held,
}

/// What came of all.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Whether each test passed; those that were not run are not there.
    pub(crate) tests: BTreeMap<String, bool>,
    lines: Vec<Line>,
}

impl Report {
    /// A new line for a row.
    pub(crate) fn line(&mut self, row: &'static Row) -> &mut Line {
        self.lines.push(Line {
            row,
            tests: Vec::new(),
            probe: None,
            controls: Vec::new(),
            peers: Held::new(),
        });
        self.lines.last_mut().expect("one was pushed")
    }

    /// Prints all lines, then why what failed did.
    pub(crate) fn print(&self) {
        println!("| id | attack | tests | probe | falls without | bwrap | runc |");
        println!("|---|---|---|---|---|---|---|");
        for line in &self.lines {
            println!("{}", self.row(line));
        }
        for line in &self.lines {
            for why in self.failures(line) {
                println!("{}: {why}", line.row.id);
            }
        }
        let failed = self.lines.iter().filter(|l| !self.failures(l).is_empty());
        let controls: usize = self.lines.iter().map(|l| l.controls.len()).sum();
        println!(
            "{} rows, {} failed; {controls} controls",
            self.lines.len(),
            failed.count()
        );
    }

    /// Whether nothing failed.
    pub(crate) fn is_green(&self) -> bool {
        self.lines.iter().all(|line| self.failures(line).is_empty())
    }

    fn row(&self, line: &Line) -> String {
        let star = if line.row.is_blocker { "★" } else { "" };
        let run = line.tests.iter().filter_map(|test| self.tests.get(test));
        let (passed, run) = run.fold((0, 0), |(p, n), ok| (p + usize::from(*ok), n + 1));
        let tests = match (run, line.row.instead) {
            (0, Some(Instead::WaitsFor(what))) => format!("waits for {what}"),
            (0, Some(Instead::See(place))) => place.to_owned(),
            (0, None) => format!("{} not run", line.tests.len()),
            _ => format!("{passed}/{run}"),
        };
        let probe = line.probe.as_ref().map_or("", word);
        let controls = line
            .controls
            .iter()
            .map(|control| format!("{} {}", control.protections, word(&control.outcome)));
        let controls: Vec<String> = controls.collect();
        let peer = |name: &str| {
            let held = line.peers.iter().find(|(peer, _)| *peer == name);
            match held.and_then(|(_, held)| *held) {
                None => "",
                Some(true) => "held",
                Some(false) => "not held",
            }
        };
        format!(
            "| {}{star} | {} | {tests} | {probe} | {} | {} | {} |",
            line.row.id,
            line.row.title,
            controls.join("; "),
            peer("bwrap"),
            peer("runc"),
        )
    }

    fn failures(&self, line: &Line) -> Vec<String> {
        let tests = line.tests.iter();
        let failed = tests.filter(|test| self.tests.get(*test) == Some(&false));
        let mut why: Vec<String> = failed.map(|test| format!("{test} failed")).collect();
        let outcomes = line
            .probe
            .iter()
            .chain(line.controls.iter().map(|control| &control.outcome));
        why.extend(outcomes.filter_map(|outcome| outcome.0.clone().err()));
        if line.tests.is_empty() && line.probe.is_none() && line.row.instead.is_none() {
            why.push("nothing answers it".into());
        }
        why
    }
}

fn word(outcome: &Outcome) -> &'static str {
    if outcome.0.is_ok() { "ok" } else { "FAILED" }
}
