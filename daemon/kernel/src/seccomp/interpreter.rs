//! Runs a program without the kernel: just enough of classic BPF for seccomp, and stricter than the kernel.

use super::Instruction;

/// What the kernel shows a filter of a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Data {
    pub(super) number: u32,
    pub(super) architecture: u32,
    pub(super) arguments: [u64; 6],
}

/// How a program ended: its return value and how many instructions it took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) value: u32,
    pub(super) steps: usize,
}

/// Runs to the first return. Panics on anything that this crate's programs have no reason to contain.
pub(super) fn run(program: &[Instruction], data: &Data) -> Outcome {
    let (mut at, mut accumulator, mut steps) = (0, 0, 0);
    loop {
        let Instruction { code, jt, jf, k } = program[at];
        at += 1;
        steps += 1;
        match code {
            0x20 => accumulator = load(data, k),
            0x54 => accumulator &= k,
            0x05 => at += k as usize,
            0x15 => at += usize::from(if accumulator == k { jt } else { jf }),
            0x35 => at += usize::from(if accumulator >= k { jt } else { jf }),
            0x06 => return Outcome { value: k, steps },
            other => panic!("instruction {other:#x} at {at}"),
        }
    }
}

/// `struct seccomp_data` on a little-endian machine.
fn load(data: &Data, offset: u32) -> u32 {
    match offset {
        0 => data.number,
        4 => data.architecture,
        16..64 if offset.is_multiple_of(8) => data.arguments[(offset as usize - 16) / 8] as u32,
        _ => panic!("load at {offset}"),
    }
}
