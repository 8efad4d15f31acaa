//! From answers to classic BPF: a balanced tree over the call's number, checks of arguments as its leaves.
//!
//! A linear list of 300 comparisons costs 1.5 ms to install, since the kernel then runs the program for every number to
//! learn which are always allowed; a balanced tree costs about a seventh of that.

use super::answer::{Answer, Verdict};
use super::checks::{Check, Condition, Holds, Test};

/// One instruction, in the kernel's form.
pub type Instruction = libc::sock_filter;

/// Offsets in `struct seccomp_data` (linux/seccomp.h).
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;
const ARGUMENT_BYTES: u32 = 8;

/// x86-64, from linux/audit.h.
pub(super) const X86_64: u32 = 0xC000_003E;
/// Numbers from here on are of the x32 ABI: other calls under the same architecture.
pub(super) const X32_BIT: u32 = 0x4000_0000;
/// What a tracer writes to skip a call (gdb does); no call has it, and it must not look like x32.
pub(super) const SKIPPED: u32 = u32::MAX;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JUMP_IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;

/// Numbers from `first` up to the next range's have the same answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    first: u32,
    answer: Answer,
}

/// The program for a whole table. `answers` is sorted by number, each number once; a number that is not in it is one
/// that this build does not know, and fails with ENOSYS so that C libraries fall back.
pub(super) fn tree(answers: &[(u32, Answer)]) -> Vec<Instruction> {
    let mut program = vec![
        statement(LOAD, ARCHITECTURE),
        branch(JUMP_IF_EQUAL, X86_64, 1, 0),
        verdict(Verdict::Kill),
        statement(LOAD, NUMBER),
    ];
    program.extend(node(&ranges(answers)));
    program
}

/// The program with one verdict on one number, everything else allowed.
pub(super) fn single(number: u32, answer: Verdict) -> Vec<Instruction> {
    vec![
        statement(LOAD, NUMBER),
        branch(JUMP_IF_EQUAL, number, 0, 1),
        verdict(answer),
        verdict(Verdict::Allow),
    ]
}

/// Covers every 32-bit number, merging neighbours of the same answer.
fn ranges(answers: &[(u32, Answer)]) -> Vec<Range> {
    let unknown = Answer::Always(Verdict::Fail(libc::ENOSYS));
    let mut ranges = vec![Range {
        first: 0,
        answer: unknown,
    }];
    let mut push = |first, answer| {
        let last = ranges.last_mut().expect("starts with one");
        if last.first == first {
            last.answer = answer;
        } else if last.answer != answer {
            ranges.push(Range { first, answer });
        }
    };
    for &(number, answer) in answers {
        push(number, answer);
        push(number + 1, unknown);
    }
    push(X32_BIT, Answer::Always(Verdict::Kill));
    push(SKIPPED, unknown);
    merged(ranges)
}

/// A gap of one number that the next row filled leaves neighbours of the same answer behind.
fn merged(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.dedup_by(|next, range| next.answer == range.answer);
    ranges
}

/// Halves the ranges until one is left. The number is in the accumulator all the way down.
fn node(ranges: &[Range]) -> Vec<Instruction> {
    let (lower, upper) = ranges.split_at(ranges.len() / 2);
    let Some(middle) = upper.first().filter(|_| !lower.is_empty()) else {
        return leaf(ranges[0].answer);
    };
    let lower = node(lower);
    let mut code = match u8::try_from(lower.len()) {
        Ok(distance) => vec![branch(JUMP_IF_AT_LEAST, middle.first, distance, 0)],
        // Conditional jumps reach 255 instructions; further ones take an unconditional one.
        Err(_) => vec![
            branch(JUMP_IF_AT_LEAST, middle.first, 0, 1),
            far_jump(lower.len()),
        ],
    };
    code.extend(lower);
    code.extend(node(upper));
    code
}

fn leaf(answer: Answer) -> Vec<Instruction> {
    match answer {
        Answer::Always(always) => vec![verdict(always)],
        Answer::Check(check) => tests(check),
    }
}

fn tests(check: &Check) -> Vec<Instruction> {
    let mut code: Vec<_> = check.tests.iter().flat_map(test).collect();
    code.push(verdict(check.otherwise));
    code
}

/// Conditions, then the verdict; a condition that does not hold jumps behind the verdict, to the next test.
fn test(test: &Test) -> Vec<Instruction> {
    test.when
        .iter()
        .rev()
        .fold(vec![verdict(test.verdict)], |behind, condition| {
            let mut code = self::condition(condition, behind.len());
            code.extend(behind);
            code
        })
}

/// Goes on behind itself if the condition holds, else `behind` instructions further.
fn condition(condition: &Condition, behind: usize) -> Vec<Instruction> {
    let mut code = vec![statement(
        LOAD,
        ARGUMENTS + condition.argument * ARGUMENT_BYTES,
    )];
    if condition.mask != u32::MAX {
        code.push(statement(AND, condition.mask));
    }
    for (index, &value) in condition.values.iter().enumerate() {
        let compared_later = condition.values.len() - 1 - index;
        let fails = if compared_later == 0 { behind } else { 0 };
        code.push(match condition.holds {
            Holds::IfListed => near_branch(value, compared_later, fails),
            Holds::IfNotListed => near_branch(value, compared_later + behind, 0),
        });
    }
    code
}

fn statement(code: u16, k: u32) -> Instruction {
    Instruction {
        code,
        jt: 0,
        jf: 0,
        k,
    }
}

fn branch(code: u16, k: u32, jt: u8, jf: u8) -> Instruction {
    Instruction { code, jt, jf, k }
}

fn near_branch(value: u32, equal: usize, different: usize) -> Instruction {
    let distance = |count: usize| u8::try_from(count).expect("a check is shorter than 255");
    branch(JUMP_IF_EQUAL, value, distance(equal), distance(different))
}

fn far_jump(distance: usize) -> Instruction {
    statement(
        JUMP,
        u32::try_from(distance).expect("a program has at most 4,096 instructions"),
    )
}

fn verdict(verdict: Verdict) -> Instruction {
    let action = match verdict {
        Verdict::Allow => libc::SECCOMP_RET_ALLOW,
        Verdict::Fail(errno) => libc::SECCOMP_RET_ERRNO | errno.unsigned_abs(),
        Verdict::Kill => libc::SECCOMP_RET_KILL_PROCESS,
    };
    statement(RETURN, action)
}
