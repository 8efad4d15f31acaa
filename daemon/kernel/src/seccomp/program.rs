//! The two programs that are installed.

use super::answer::Verdict;
use super::assemble::{self, Instruction};
use super::table;

/// A finished classic BPF program for seccomp(2).
#[derive(Debug, Clone)]
pub struct Program {
    instructions: Vec<Instruction>,
}

impl Program {
    pub(super) fn new(instructions: Vec<Instruction>) -> Self {
        Self { instructions }
    }

    /// The instructions, in the kernel's form.
    #[must_use]
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }
}

/// The program that each sandbox's PID 1 installs once, when all set-up is done. It must leave PID 1 able to start
/// runs: clone3 is open in it. Build it once, in the launcher: it is the same for every sandbox.
#[must_use]
pub fn base_program() -> Program {
    Program::new(assemble::tree(&table::answers()))
}

/// The program that the child of each run adds before it executes the command: clone3 is for PID 1 alone, since its flags
/// lie behind a pointer where no filter can check them. C libraries fall back to clone on ENOSYS.
///
/// Foreign architectures are not looked at: the base program has killed them, and the strictest answer wins.
#[must_use]
pub fn run_program() -> Program {
    let clone3 = u32::try_from(libc::SYS_clone3).expect("system call numbers are small");
    Program::new(assemble::single(clone3, Verdict::Fail(libc::ENOSYS)))
}
