//! What becomes of a system call.

use super::checks::Check;

/// What the filter decides about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The kernel handles it, with its own checks.
    Allow,
    /// It fails with this errno, without reaching the kernel's code.
    Fail(i32),
    /// The process dies: what asked is not a program of this architecture.
    Kill,
}

/// How the filter decides about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// Whatever its arguments are.
    Always(Verdict),
    /// Its arguments decide.
    Check(&'static Check),
}

/// Rows of the same answer: the calls by name and number, and why.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    /// What becomes of them.
    pub(super) answer: Answer,
    /// Why, in a sentence for the person who reviews the table.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "for reviewers and the printed table")
    )]
    pub(super) reason: &'static str,
    /// The calls.
    pub(super) calls: &'static [Call],
}

/// A system call of x86-64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Call {
    /// The kernel's name.
    pub(super) name: &'static str,
    /// The number in the register.
    pub(super) number: u32,
}
