//! A table of named steps, each with its undo: what create and start are made of. An error names the step; the order is
//! the table's. A step that panics has failed, and is taken back like any other: what it leaves would be taken for a
//! sandbox by the next daemon.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::failure::panicked;
use crate::error::Result;
use crate::fault::{self, Moment};

/// One step. `undo` takes back what `run` did, and also what a `run` that failed half-way left; it cannot fail: what it
/// cannot do it logs, and recovery at the next start does it.
pub(crate) struct Step<C> {
    /// Its name in errors and logs.
    pub(crate) name: &'static str,
    /// Does it.
    pub(crate) run: fn(&mut C) -> Result<()>,
    /// Takes it back.
    pub(crate) undo: fn(&mut C),
}

/// Nothing to take back: the undo of an earlier step does it, or there is nothing.
pub(crate) fn nothing<C>(_: &mut C) {}

/// Runs all steps in order; after a failure, takes back the failed one and those before it, the last first. `table` is
/// what its fault points are named after.
pub(crate) fn run_all<C>(table: &str, steps: &[Step<C>], context: &mut C) -> Result<()> {
    for (index, step) in steps.iter().enumerate() {
        if let Err(error) = run(table, step, context) {
            undo_all(table, &steps[..=index], context);
            return Err(error.during(step.name));
        }
        tracing::trace!(step = step.name, "done");
    }
    Ok(())
}

fn run<C>(table: &str, step: &Step<C>, context: &mut C) -> Result<()> {
    // What a panic left in the context is seen by the undos alone, which take back what is there, whatever it is.
    catch_unwind(AssertUnwindSafe(|| {
        fault::at_step(table, step.name, Moment::Before)?;
        (step.run)(context)?;
        Ok(fault::at_step(table, step.name, Moment::Done)?)
    }))
    .unwrap_or_else(|_| Err(panicked()))
}

fn undo<C>(table: &str, step: &Step<C>, context: &mut C) {
    let undone = catch_unwind(AssertUnwindSafe(|| {
        // An undo cannot fail, so that a failure asked for here is none; a kill or a wait is.
        let _ = fault::at_step(table, step.name, Moment::Undo);
        (step.undo)(context);
    }));
    if undone.is_err() {
        tracing::error!(step = step.name, "an undo panicked; the others go on");
    }
}

/// Takes all steps back, the last first.
pub(crate) fn undo_all<C>(table: &str, steps: &[Step<C>], context: &mut C) {
    for step in steps.iter().rev() {
        undo(table, step, context);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    type Log = Vec<&'static str>;

    const STEPS: &[Step<Log>] = &[
        Step {
            name: "one",
            run: |log| push(log, "one"),
            undo: |log| log.push("undo one"),
        },
        Step {
            name: "two",
            run: |log| push(log, "two"),
            undo: nothing,
        },
        Step {
            name: "three",
            run: |_| Err(Error::invalid("BROKEN", "it broke")),
            undo: |log| log.push("undo three"),
        },
        Step {
            name: "four",
            run: |log| push(log, "four"),
            undo: |log| log.push("undo four"),
        },
    ];

    #[expect(clippy::unnecessary_wraps, reason = "the form of a step")]
    fn push(log: &mut Log, what: &'static str) -> Result<()> {
        log.push(what);
        Ok(())
    }

    #[test]
    fn a_failed_step_is_named_and_those_before_it_are_undone_backwards() {
        let mut log = Log::new();
        let error = run_all("test", STEPS, &mut log).expect_err("three fails");
        assert_eq!(error.to_string(), "three: it broke");
        assert_eq!(error.reason(), "BROKEN");
        assert_eq!(log, ["one", "two", "undo three", "undo one"]);
    }

    #[test]
    fn a_step_that_panics_is_undone_like_one_that_fails() {
        const STEPS: &[Step<Log>] = &[
            Step {
                name: "one",
                run: |log| push(log, "one"),
                undo: |log| log.push("undo one"),
            },
            Step {
                name: "two",
                run: |_| panic!("as a faulty step would"),
                undo: |_| panic!("as a faulty undo would"),
            },
        ];
        let mut log = Log::new();
        let error = run_all("test", STEPS, &mut log).expect_err("two panics");
        assert_eq!(error.reason(), "INTERNAL");
        assert_eq!(log, ["one", "undo one"]);
    }

    #[cfg(feature = "fault-points")]
    #[test]
    fn every_step_is_in_the_table_of_fault_points() {
        fn names<C>(steps: &[Step<C>]) -> Vec<&'static str> {
            steps.iter().map(|step| step.name).collect()
        }
        let create = names(crate::sandbox::create::STEPS);
        let start = names(crate::sandbox::start::STEPS);
        crate::fault::assert_steps("create", &create);
        crate::fault::assert_steps("start", &start);
    }
}
