//! The same list of devices where cgroups are version 2 alone: a program that the kernel asks at each open and mknod.

use super::devices::{ALLOWED, ANY};
use super::directory::Directory;
use super::error::{Error, Result};
use crate::protection::Protection;
use crate::sys::bpf::{self, Instruction};

/// linux/bpf_common.h and linux/bpf.h.
const LOAD_WORD: u8 = 0x61;
const AND: u8 = 0x54;
const MOVE: u8 = 0xb4;
const JUMP_IF_NOT: u8 = 0x56;
const JUMP_IF_ANY: u8 = 0x46;
const JUMP_ALWAYS: u8 = 0x05;
const EXIT: u8 = 0x95;

/// `struct bpf_cgroup_dev_ctx`: access and type, major, minor.
const TYPE_AND_ACCESS: i16 = 0;
const MAJOR: i16 = 4;
const MINOR: i16 = 8;
const CHARACTER: i32 = 2;
const MKNOD: i32 = 1 << 16;
const TYPE: i32 = 0xffff;

/// Attaches the list to a group, for it and for all below. A refusal is an error: a sandbox never starts with more devices than it
/// should have.
pub(super) fn restrict(group: &Directory) -> Result<()> {
    if Protection::Devices.is_off() {
        return Ok(());
    }
    let attached = bpf::load_device_program(&program())
        .and_then(|program| bpf::attach_to_devices(group.fd(), std::os::fd::AsFd::as_fd(&program)));
    attached.map_err(|source| Error::DeviceProgram {
        path: group.path().into(),
        source,
    })
}

/// Refuses mknod and everything but character devices, then allows what is listed.
fn program() -> Vec<Instruction> {
    let instruction = |code, to: u8, from: u8, offset, immediate| Instruction {
        code,
        registers: from << 4 | to,
        offset,
        immediate,
    };
    // The context is in register 1; what is answered, in 0.
    let refuse = [instruction(MOVE, 0, 0, 0, 0), instruction(EXIT, 0, 0, 0, 0)];
    let allow = [instruction(MOVE, 0, 0, 0, 1), instruction(EXIT, 0, 0, 0, 0)];
    let mut program = vec![
        instruction(LOAD_WORD, 2, 1, TYPE_AND_ACCESS, 0),
        instruction(LOAD_WORD, 4, 1, MAJOR, 0),
        instruction(LOAD_WORD, 5, 1, MINOR, 0),
        // To the refusal.
        instruction(JUMP_IF_ANY, 2, 0, 3, MKNOD),
        instruction(AND, 2, 0, 0, TYPE),
        // Over the refusal.
        instruction(JUMP_IF_NOT, 2, 0, 1, CHARACTER),
        instruction(JUMP_ALWAYS, 0, 0, 2, 0),
    ];
    program.extend(refuse);
    for (major, minor, _) in ALLOWED {
        let number = |n: i64| i32::try_from(n).unwrap_or(-1);
        if minor == ANY {
            program.push(instruction(JUMP_IF_NOT, 4, 0, 2, number(major)));
        } else {
            program.push(instruction(JUMP_IF_NOT, 4, 0, 3, number(major)));
            program.push(instruction(JUMP_IF_NOT, 5, 0, 2, number(minor)));
        }
        program.extend(allow);
    }
    program.extend(refuse);
    program
}
