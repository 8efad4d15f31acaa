//! The catalogue of attacks as data: what each is called, what answers it, and what is tried.
//!
//! A row is answered by tests named `attack_<id>_…` of `make test`, by a probe that `make redteam` runs, or by both; or it says what it
//! waits for, or why there is nothing to run. Controls name protections without which a test or the probe must fail: one that passes
//! either way proves nothing. The ids are those of the project's catalogue; titles say in our own words what is tried.

mod api; // A: abuse of the API
mod escape; // E: out of the sandbox, and up in privilege
mod faults; // D: faults of daemon and host
mod files; // F: files and archives
mod leak; // L: what is to be seen
mod process; // P: tricks with processes
mod resource; // R: resources used up

use lodge_proto::v1::{self as pb, EndReason};

/// Variable by which a test's daemon has protections switched off.
pub const WEAKEN: &str = "LODGE_TEST_WEAKEN";

/// An attack or a fault.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Its id in the catalogue, such as `E07`.
    pub id: &'static str,
    /// What is tried.
    pub title: &'static str,
    /// No release without it: its tests are in `make test`.
    pub is_blocker: bool,
    /// What is run inside, if its tests are not all.
    pub probe: Option<Probe>,
    /// Protections, joined by commas, without which the probe must fail.
    pub probe_falls_without: &'static [&'static str],
    /// The same of tests: protections, and the test.
    pub test_falls_without: &'static [(&'static str, &'static str)],
    /// Tests under other names.
    pub tests: &'static [&'static str],
    /// Why there is nothing to run.
    pub instead: Option<Instead>,
}

/// Why a row has no test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instead {
    /// It needs what does not exist yet.
    WaitsFor(&'static str),
    /// It is a fact that is accepted, or another target's: where that is written, or which one.
    See(&'static str),
}

/// Something that is run inside as root.
#[derive(Debug, Clone, Copy)]
pub struct Probe {
    /// Its program.
    pub program: Program,
    /// What it must come to.
    pub expect: Expect,
    /// Limits of the sandbox.
    pub bounds: Bounds,
    /// Whether it is tried against other runtimes as well: only what does no harm where it succeeds.
    pub is_harmless: bool,
}

/// A probe's program.
#[derive(Debug, Clone, Copy)]
pub enum Program {
    /// For bash.
    Shell(&'static str),
    /// For Python, with the prelude of [`prober`](crate::prober).
    Python(&'static str),
}

/// What a probe must come to.
#[derive(Debug, Clone, Copy)]
pub enum Expect {
    /// It exits with 0 and its whole standard output is this.
    Says(&'static str),
    /// It exits with 0, and for each label it says one of these answers, joined by `|`.
    Answers(&'static [(&'static str, &'static str)]),
    /// It ends so.
    Ends(EndReason),
}

/// Limits of a probe's sandbox. Zero: the daemon's default.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bounds {
    /// Bytes of memory.
    pub memory: i64,
    /// Processes and threads.
    pub pids: i64,
    /// Open files of a process.
    pub files: i64,
}

impl Bounds {
    /// As the API takes them.
    #[must_use]
    pub fn limits(self) -> pb::Limits {
        let given = |value: i64| (value != 0).then_some(value);
        pb::Limits {
            memory_bytes: given(self.memory),
            pids: given(self.pids),
            open_files: given(self.files),
            ..Default::default()
        }
    }
}

/// A row of which tests are all that there is, until more is said.
const fn row(id: &'static str, title: &'static str) -> Row {
    Row {
        id,
        title,
        is_blocker: false,
        probe: None,
        probe_falls_without: &[],
        test_falls_without: &[],
        tests: &[],
        instead: None,
    }
}

/// A probe in shell, harmless and without limits of its own.
const fn shell(script: &'static str, says: &'static str) -> Probe {
    Probe {
        program: Program::Shell(script),
        expect: Expect::Says(says),
        bounds: Bounds {
            memory: 0,
            pids: 0,
            files: 0,
        },
        is_harmless: false,
    }
}

/// A probe in Python that gives answers.
const fn python(program: &'static str, answers: &'static [(&'static str, &'static str)]) -> Probe {
    Probe {
        program: Program::Python(program),
        expect: Expect::Answers(answers),
        bounds: Bounds {
            memory: 0,
            pids: 0,
            files: 0,
        },
        is_harmless: false,
    }
}

impl Probe {
    const fn harmless(mut self) -> Self {
        self.is_harmless = true;
        self
    }

    const fn within(mut self, bounds: Bounds) -> Self {
        self.bounds = bounds;
        self
    }

    const fn ends(mut self, reason: EndReason) -> Self {
        self.expect = Expect::Ends(reason);
        self
    }
}

impl Row {
    const fn star(mut self) -> Self {
        self.is_blocker = true;
        self
    }

    const fn probe(mut self, probe: Probe) -> Self {
        self.probe = Some(probe);
        self
    }

    const fn falls_without(mut self, protections: &'static [&'static str]) -> Self {
        self.probe_falls_without = protections;
        self
    }

    const fn test_falls(mut self, controls: &'static [(&'static str, &'static str)]) -> Self {
        self.test_falls_without = controls;
        self
    }

    const fn named(mut self, tests: &'static [&'static str]) -> Self {
        self.tests = tests;
        self
    }

    const fn waits_for(mut self, what: &'static str) -> Self {
        self.instead = Some(Instead::WaitsFor(what));
        self
    }

    const fn see(mut self, place: &'static str) -> Self {
        self.instead = Some(Instead::See(place));
        self
    }

    /// What the names of its tests begin with.
    #[must_use]
    pub fn prefix(&self) -> String {
        format!("attack_{}_", self.id.to_lowercase())
    }

    /// Whether a test, by its name without modules, is one of this row.
    #[must_use]
    pub fn has_test(&self, name: &str) -> bool {
        name.starts_with(&self.prefix()) || self.tests.contains(&name)
    }
}

/// All rows, by group and number.
pub fn all() -> impl Iterator<Item = &'static Row> {
    [
        escape::ROWS,
        leak::ROWS,
        resource::ROWS,
        process::ROWS,
        files::ROWS,
        api::ROWS,
        faults::ROWS,
    ]
    .into_iter()
    .flatten()
}
