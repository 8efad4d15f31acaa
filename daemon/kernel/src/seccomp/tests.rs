//! The table as it stands, and the programs as an interpreter runs them. `sys/seccomp` asks the kernel itself.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::answer::{Answer, Verdict};
use super::assemble::{SKIPPED, X32_BIT, X86_64};
use super::checks::{Check, Condition, Holds};
use super::interpreter::{Data, Outcome, run};
use super::table::{ROWS, answers};
use super::{base_program, run_program};

/// Well above the highest number of any kernel.
const NUMBERS: std::ops::Range<u32> = 0..600;
const I386: u32 = 0x4000_0003;
const SNAPSHOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/seccomp/table.txt");

fn base(number: u32, arguments: [u64; 6]) -> Outcome {
    run(
        base_program().instructions(),
        &Data {
            number,
            architecture: X86_64,
            arguments,
        },
    )
}

fn number(name: &str) -> u32 {
    let mut calls = ROWS.iter().flat_map(|row| row.calls);
    calls
        .find(|call| call.name == name)
        .map(|call| call.number)
        .unwrap()
}

fn decides(name: &str, arguments: [u64; 3]) -> u32 {
    let [first, second, third] = arguments;
    base(number(name), [first, second, third, 0, 0, 0]).value
}

fn value(verdict: Verdict) -> u32 {
    match verdict {
        Verdict::Allow => 0x7FFF_0000,
        Verdict::Fail(errno) => 0x0005_0000 | errno.unsigned_abs(),
        Verdict::Kill => 0x8000_0000,
    }
}

const ALLOW: u32 = 0x7FFF_0000;
fn fail(errno: i32) -> u32 {
    value(Verdict::Fail(errno))
}

/// A change of the table is a change of what sandboxes may do: it shows in the diff of `table.txt`.
#[test]
fn the_table_is_the_reviewed_one() {
    let printed = printed_table();
    if std::env::var_os("LODGE_UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(SNAPSHOT, &printed).unwrap();
    }
    let reviewed = std::fs::read_to_string(SNAPSHOT).unwrap_or_default();
    let differs = printed
        .lines()
        .zip(reviewed.lines())
        .find(|(new, old)| new != old);
    assert!(
        printed == reviewed,
        "the table has changed, first at {differs:?}; run with LODGE_UPDATE_SNAPSHOTS=1 and review the diff"
    );
}

fn printed_table() -> String {
    let mut lines = BTreeMap::new();
    for row in ROWS {
        for call in row.calls {
            let answer = match row.answer {
                Answer::Always(verdict) => printed(verdict),
                Answer::Check(check) => check.name.into(),
            };
            let line = format!(
                "{:3} {:24} {answer}: {}",
                call.number, call.name, row.reason
            );
            assert_eq!(
                lines.insert(call.number, line),
                None,
                "{} is in two rows",
                call.name
            );
        }
    }
    lines.into_values().fold(String::new(), |mut text, line| {
        writeln!(text, "{line}").unwrap();
        text
    })
}

fn printed(verdict: Verdict) -> String {
    match verdict {
        Verdict::Allow => "allow".into(),
        Verdict::Fail(libc::EPERM) => "EPERM".into(),
        Verdict::Fail(libc::ENOSYS) => "ENOSYS".into(),
        other => format!("{other:?}"),
    }
}

#[test]
fn every_row_has_a_reason() {
    assert!(
        ROWS.iter()
            .all(|row| row.reason.len() > 10 && !row.calls.is_empty())
    );
}

/// The tree against the table, read in the plainest way.
#[test]
fn the_program_answers_every_number_as_the_table_says() {
    let program = base_program();
    let table: BTreeMap<_, _> = answers().into_iter().collect();
    let samples = argument_samples();
    for number in NUMBERS {
        // What a row answers without looking needs no more than two looks.
        let (check, samples) = match table.get(&number) {
            Some(Answer::Check(check)) => (Some(*check), samples.as_slice()),
            _ => (None, &[[0; 6], [u64::MAX; 6]][..]),
        };
        for &arguments in samples {
            let expected = match (check, table.get(&number)) {
                (Some(check), _) => judge(check, arguments),
                (None, Some(Answer::Always(verdict))) => *verdict,
                _ => Verdict::Fail(libc::ENOSYS),
            };
            let data = Data {
                number,
                architecture: X86_64,
                arguments,
            };
            let outcome = run(program.instructions(), &data);
            assert_eq!(outcome.value, value(expected), "{number} {arguments:x?}");
        }
    }
}

/// Every value that any condition names, its neighbours, and rubbish in the upper half, in every place.
fn argument_samples() -> Vec<[u64; 6]> {
    let checks = ROWS.iter().filter_map(|row| match row.answer {
        Answer::Check(check) => Some(check),
        Answer::Always(_) => None,
    });
    let conditions = checks
        .flat_map(|check| check.tests)
        .flat_map(|test| test.when);
    let named = conditions
        .flat_map(|condition| condition.values)
        .map(|value| u64::from(*value));
    let mut values: Vec<_> = named
        .flat_map(|value| [value, value + 1, value | 1 << 40])
        .collect();
    values.extend([0x8_0003, 0x1000_0000, 0x9401, u64::MAX]);
    values.sort_unstable();
    values.dedup();
    let few = [0, 1, 2, 6, 17, 136, u64::MAX];
    let mut samples = Vec::new();
    for &first in &values {
        for second in few {
            samples.push([first, second, 0, 0, 0, 0]);
            samples.push([second, first, 6, 0, 0, 0]);
            samples.push([2, second, first, 0, 0, 0]);
            samples.push([second, 1, first, 0, 0, 0]);
        }
    }
    samples
}

fn judge(check: &Check, arguments: [u64; 6]) -> Verdict {
    let holds = |condition: &Condition| {
        let argument = arguments[condition.argument as usize] as u32 & condition.mask;
        condition.values.contains(&argument) == (condition.holds == Holds::IfListed)
    };
    let decided = check.tests.iter().find(|test| test.when.iter().all(holds));
    decided.map_or(check.otherwise, |test| test.verdict)
}

#[test]
fn other_architectures_and_x32_are_killed() {
    let kill = value(Verdict::Kill);
    for number in NUMBERS {
        let foreign = Data {
            number,
            architecture: I386,
            arguments: [0; 6],
        };
        assert_eq!(run(base_program().instructions(), &foreign).value, kill);
        assert_eq!(base(X32_BIT | number, [0; 6]).value, kill);
    }
    assert_eq!(base(0x8000_0000, [0; 6]).value, kill);
}

#[test]
fn a_call_that_a_debugger_skips_is_no_reason_to_kill() {
    assert_eq!(base(SKIPPED, [0; 6]).value, fail(libc::ENOSYS));
}

#[test]
fn no_namespace_comes_by_clone() {
    let flags = [
        0x2_0000,
        0x200_0000,
        0x400_0000,
        0x800_0000,
        0x1000_0000,
        0x2000_0000,
        0x4000_0000,
    ];
    for flag in flags {
        assert_eq!(decides("clone", [flag | 17, 0, 0]), fail(libc::EPERM));
    }
    let thread = 0x3D_0F00;
    assert_eq!(decides("clone", [thread, 0, 0]), ALLOW);
    assert_eq!(decides("clone", [17, 0, 0]), ALLOW);
}

#[test]
fn sockets_are_of_the_listed_families_and_protocols() {
    let [unix, inet, inet6, netlink, packet, vsock] = [1, 2, 10, 16, 17, 40];
    let cloexec = 0x8_0000;
    for allowed in [
        [unix, 5, 0],
        [inet, 1 | cloexec, 6],
        [inet6, 2, 17],
        [inet, 2, 1],
        [netlink, 3, 0],
        [netlink, 3, 4],
    ] {
        assert_eq!(decides("socket", allowed), ALLOW, "{allowed:?}");
    }
    let refused = [
        ([vsock, 1, 0], libc::EAFNOSUPPORT),
        ([packet, 3, 0], libc::EAFNOSUPPORT),
        ([38, 5, 0], libc::EAFNOSUPPORT),
        ([inet, 3 | cloexec, 1], libc::EPERM),
        ([inet6, 3, 58], libc::EPERM),
        ([inet, 1, 132], libc::EPROTONOSUPPORT),
        ([inet, 5, 132], libc::EPROTONOSUPPORT),
        ([inet, 6, 33], libc::EPROTONOSUPPORT),
        ([inet, 2, 136], libc::EPROTONOSUPPORT),
        ([inet, 1, 262], libc::EPROTONOSUPPORT),
        ([inet, 5, 0], libc::ESOCKTNOSUPPORT),
        ([inet, 6, 0], libc::ESOCKTNOSUPPORT),
        ([inet, 10, 0], libc::ESOCKTNOSUPPORT),
        ([netlink, 3, 6], libc::EPROTONOSUPPORT),
        ([netlink, 3, 12], libc::EPROTONOSUPPORT),
    ];
    for (arguments, errno) in refused {
        assert_eq!(decides("socket", arguments), fail(errno), "{arguments:?}");
    }
    assert_eq!(decides("socketpair", [unix, 1, 0]), ALLOW);
    assert_eq!(
        decides("socketpair", [inet, 1, 0]),
        fail(libc::EAFNOSUPPORT)
    );
    assert_eq!(decides("setsockopt", [3, 6, 31]), fail(libc::ENOPROTOOPT));
    assert_eq!(decides("setsockopt", [3, 17, 100]), fail(libc::ENOPROTOOPT));
    assert_eq!(decides("setsockopt", [3, 6, 1]), ALLOW);
}

#[test]
fn ioctls_are_compared_in_32_bits() {
    let upper = 1 << 32;
    for request in [0x5412, 0x541C, 0x5423, 0x5000_940E, 0x9408] {
        assert_eq!(
            decides("ioctl", [0, request, 0]),
            fail(libc::EPERM),
            "{request:x}"
        );
        assert_eq!(
            decides("ioctl", [0, request | upper, 0]),
            fail(libc::EPERM),
            "{request:x}"
        );
    }
    // FICLONE, FICLONERANGE, FIDEDUPERANGE, TCGETS, FIONREAD; the size is part of a number.
    for request in [0x4004_9409, 0x4020_940D, 0xC018_9436, 0x5401, 0x541B] {
        assert_eq!(decides("ioctl", [0, request, 0]), ALLOW, "{request:x}");
    }
    assert_eq!(decides("ioctl", [0, 0x4008_9409, 0]), fail(libc::EPERM));
}

#[test]
fn the_tree_is_shallow_and_short() {
    let program = base_program();
    assert!(
        program.instructions().len() <= 420,
        "{}",
        program.instructions().len()
    );
    let deepest = NUMBERS
        .map(|number| base(number, [0; 6]).steps)
        .max()
        .unwrap();
    assert!(deepest <= 40, "{deepest}");
    assert!(run_program().instructions().len() <= 10);
}

#[test]
fn a_run_cannot_use_clone3_and_loses_nothing_else() {
    let program = run_program();
    for number in NUMBERS {
        let data = Data {
            number,
            architecture: X86_64,
            arguments: [0; 6],
        };
        let expected = if number == 435 {
            fail(libc::ENOSYS)
        } else {
            ALLOW
        };
        assert_eq!(run(program.instructions(), &data).value, expected);
    }
    assert_eq!(base(435, [0; 6]).value, ALLOW, "PID 1 needs it");
}
