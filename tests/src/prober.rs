//! Raw system calls from inside a sandbox, in Python with ctypes: the base image has no compiler, and a tool such as
//! `mount` may fail for reasons of its own before the kernel is asked.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};

use crate::room::Ran;

/// Defines `sc(name, *args)`, a system call by name that returns `(result, errno name)`; `say(label, …)`, which prints
/// `label: errno name` (or `label: OK`); `tell(label, call)`, which does the same of a function; and constants that the probes need.
pub const PRELUDE: &str = r"
import ctypes, errno, os, platform, signal, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
ROWS = '''mount 165 40|umount2 166 39|fsopen 430 430|fsconfig 431 431|fsmount 432 432|fspick 433 433
open_tree 428 428|move_mount 429 429|mount_setattr 442 442|unshare 272 97|setns 308 268|clone 56 220|clone3 435 435
pivot_root 155 41|init_module 175 105|finit_module 313 273|delete_module 176 106|bpf 321 280|kexec_load 246 104
perf_event_open 298 241|userfaultfd 323 282|io_uring_setup 425 425|io_uring_enter 426 426|io_uring_register 427 427
keyctl 250 219|add_key 248 217|request_key 249 218|seccomp 317 277|ptrace 101 117|ioctl 16 29|socket 41 198
open_by_handle_at 304 265|swapon 167 224|reboot 169 142|mknodat 259 33|pidfd_open 434 434|process_vm_readv 310 270'''
NUMBER = {}
for row in ROWS.replace('\n', '|').split('|'):
    name, x86, arm = row.split()
    NUMBER[name] = int(x86 if platform.machine() == 'x86_64' else arm)
def sc(name, *args):
    ctypes.set_errno(0)
    wide = [a if isinstance(a, (bytes, ctypes.Array)) or a is None else ctypes.c_long(a) for a in args]
    wide = [ctypes.byref(a) if isinstance(a, ctypes.Structure) else a for a in wide]
    r = libc.syscall(ctypes.c_long(NUMBER[name]), *wide)
    e = ctypes.get_errno()
    return r, ('OK' if r >= 0 else errno.errorcode.get(e, str(e)))
def say(label, name, *args):
    r, e = sc(name, *args)
    print(label + ': ' + e, flush=True)
    return r
def tell(label, call):
    try: call(); answer = 'OK'
    except OSError as e: answer = errno.errorcode[e.errno]
    print(label + ': ' + answer, flush=True)
CLONE_NEWUSER, CLONE_NEWNS = 0x10000000, 0x00020000
SIGCHLD = 17
";

/// Defines `fill(path, most)`: writes zeros to a file until there is no room, and gives how many bytes that were and why no
/// more. Written through now and then: what is only in memory is not taken yet.
pub const FILL: &str = r"
import errno, os
def fill(path, most=1 << 40):
    written, block = 0, bytes(1 << 18)
    try:
        out = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        while written < most:
            written += os.write(out, block)
            if written % (16 << 20) == 0: os.fsync(out)
        return written, 'OK'
    except OSError as e:
        return written, errno.errorcode[e.errno]
";

/// Takes memory until the kernel says no.
pub const HOG: &str = "b = []\nwhile True: b.append(bytearray(1 << 20))";

/// A probe's program: the prelude and `body`.
pub fn program(body: &str) -> String {
    format!("{PRELUDE}\n{body}")
}

/// What the probe said, as `label → errno name`.
pub fn answers(ran: &Ran) -> Result<BTreeMap<String, String>> {
    ran.exited(0).context("the probe itself failed")?;
    Ok(answers_in(&ran.text()))
}

fn answers_in(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter_map(|l| l.split_once(": "));
    lines
        .map(|(label, answer)| (label.to_owned(), answer.to_owned()))
        .collect()
}

/// Fails unless the probe got, for each label, one of these answers (joined by `|`).
pub fn expect(ran: &Ran, expected: &[(&str, &str)]) -> Result<()> {
    ran.exited(0).context("the probe itself failed")?;
    expect_in(&ran.text(), expected).with_context(|| ran.story())
}

/// The same of what a probe wrote, wherever it ran.
pub fn expect_in(text: &str, expected: &[(&str, &str)]) -> Result<()> {
    let answers = answers_in(text);
    for (label, wanted) in expected {
        let got = answers
            .get(*label)
            .with_context(|| format!("no answer for {label}"))?;
        ensure!(
            wanted.split('|').any(|w| w == got),
            "{label} gave {got}, expected {wanted}"
        );
    }
    Ok(())
}
