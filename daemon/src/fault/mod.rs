//! Fault points: named places at which a test has the daemon die, fail, wait or panic.
//!
//! Compiled in by the cargo feature `fault-points` alone; without it every function here is empty. In a build that has
//! them, the variable `LODGE_FAULTS` says what happens where: `name=action[@hit],…`, with the actions `kill`, `error`,
//! `full` (an error too: there is no room on the disk), `delay:<ms>` and `panic`, at every hit or at the given one only.
//! `lodged fault-points` lists the names.
//!
//! A point is in the code of what it interrupts. Which faults a product must survive is decided by the tests.

#[cfg(feature = "fault-points")]
mod armed;
mod injected;
#[cfg(feature = "fault-points")]
mod points;
// Keeps the feature out of optimised builds; a file of its own, so that a test can compile it alone.
mod only_in_tests;

pub(crate) use injected::Injected;
#[cfg(all(feature = "fault-points", test))]
pub(crate) use points::assert_steps;
#[cfg(feature = "fault-points")]
pub use points::names;

/// Variable that says which faults happen.
pub const VARIABLE: &str = "LODGE_FAULTS";

/// When a step of a table is interrupted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Before it is run.
    Before,
    /// After it was run, with success.
    Done,
    /// Before it is taken back.
    Undo,
}

/// Why the faults that were asked for cannot happen.
#[derive(Debug, thiserror::Error)]
pub enum FaultsError {
    /// This build has none.
    #[error(
        "{VARIABLE} is set, and this build has no fault points\n\
         hint: cargo build --workspace --bins --features lodged/fault-points"
    )]
    NotCompiledIn,
    /// The variable is malformed, or names what is not there.
    #[error("{VARIABLE}: {0}")]
    Malformed(String),
}

#[cfg(feature = "fault-points")]
mod with_points {
    use super::{FaultsError, Injected, Moment, armed};

    /// Reads which faults are asked for. Called once, at the start.
    pub fn arm() -> Result<(), FaultsError> {
        armed::arm()
    }

    /// A place that may be interrupted.
    pub(crate) fn point(name: &str) -> Result<(), Injected> {
        armed::hit(name)
    }

    /// A step of a table that may be interrupted.
    pub(crate) fn at_step(table: &str, step: &str, moment: Moment) -> Result<(), Injected> {
        armed::hit_step(table, step, moment)
    }

    /// An act that may be interrupted before it happens, and once it has.
    pub(crate) fn around<T, E: From<Injected>>(
        name: &str,
        act: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        point(name)?;
        let done = act()?;
        armed::hit_done(name)?;
        Ok(done)
    }
}

#[cfg(not(feature = "fault-points"))]
mod with_points {
    use super::{FaultsError, Injected, Moment, VARIABLE};

    /// There are none: who asks for some is told so, and does not take an undisturbed daemon for one that survived.
    pub fn arm() -> Result<(), FaultsError> {
        match std::env::var_os(VARIABLE) {
            Some(_) => Err(FaultsError::NotCompiledIn),
            None => Ok(()),
        }
    }

    /// Nothing.
    #[inline(always)]
    #[expect(
        clippy::unnecessary_wraps,
        reason = "fails in a build with fault points"
    )]
    pub(crate) const fn point(_: &str) -> Result<(), Injected> {
        Ok(())
    }

    /// Nothing.
    #[inline(always)]
    #[expect(
        clippy::unnecessary_wraps,
        reason = "fails in a build with fault points"
    )]
    pub(crate) const fn at_step(_: &str, _: &str, _: Moment) -> Result<(), Injected> {
        Ok(())
    }

    /// The act alone.
    #[inline(always)]
    pub(crate) fn around<T, E>(_: &str, act: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        act()
    }
}

pub use with_points::arm;
pub(crate) use with_points::{around, at_step, point};
