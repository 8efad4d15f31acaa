//! Which system calls a sandbox may make: a table, the program built from it, and its installation.
//!
//! Two programs. The base one, a balanced tree over all numbers, is installed once in each sandbox's PID 1 and
//! inherited by everything there. A tiny one is added in the child of each run, for what only PID 1 may do.
//! x86-64 only: every other architecture, the 32-bit and x32 ones of the same processor too, is killed.

mod answer; // what becomes of a call
mod assemble; // from rows to instructions
mod checks; // answers that depend on arguments
mod denial; // whether a program refuses what it is relied on for
mod interpreter; // runs a program without the kernel
mod program; // the finished programs
mod table; // the rows: calls, answer, reason
#[cfg(test)]
mod tests;

pub use crate::sys::seccomp::install;
pub use assemble::Instruction;
pub use denial::denies_btrfs;
pub use program::{Program, base_program, run_program};
