//! The programs in the kernel: forks a child, installs them and makes calls by raw number. Needs root, fails without.

use std::io::Read as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitStatus};

use super::install;
use crate::seccomp::{Program, base_program, run_program};

/// A call: number and arguments.
type Call = (i64, [i64; 6]);

/// Pointers and lengths of all ones: a call that slips through fails in the kernel and changes nothing.
const HARMLESS: [i64; 6] = [-1; 6];

/// Runs `calls` in a child under `programs`: for each its errno, or 0.
fn answers(programs: &[&Program], calls: &[Call]) -> Vec<i32> {
    let (status, answers) = in_child(programs, calls);
    assert!(
        status.success(),
        "{status}: install needs CAP_SYS_ADMIN, run the tests as root"
    );
    answers
}

fn in_child(programs: &[&Program], calls: &[Call]) -> (ExitStatus, Vec<i32>) {
    let (read_end, write_end) = nix::unistd::pipe().unwrap();
    let child = || {
        for program in programs {
            install(program)?;
        }
        for (number, arguments) in calls {
            send(&write_end, errno_of(*number, *arguments));
        }
        Ok(())
    };
    let status = fork_and(child);
    drop(write_end);
    let mut bytes = Vec::new();
    std::fs::File::from(read_end)
        .read_to_end(&mut bytes)
        .unwrap();
    let errnos = bytes
        .chunks_exact(4)
        .map(|four| i32::from_ne_bytes(four.try_into().unwrap()));
    (status, errnos.collect())
}

/// Forks; the child calls `body`, which must not allocate, and exits.
fn fork_and(body: impl FnOnce() -> nix::Result<()>) -> ExitStatus {
    // SAFETY: the child makes system calls on memory that exists already, and leaves by _exit.
    match unsafe { libc::fork() } {
        0 => {
            let code = i32::from(body().is_err());
            // SAFETY: always sound.
            unsafe { libc::_exit(code) }
        }
        child => {
            assert!(child > 0);
            let mut status = 0;
            // SAFETY: `status` is a valid place for the result.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            ExitStatus::from_raw(status)
        }
    }
}

fn errno_of(number: i64, a: [i64; 6]) -> i32 {
    // SAFETY: callers pass either all ones, which no call takes for a valid pointer, or arguments of calls that take none.
    let ret = unsafe { libc::syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]) };
    if ret == -1 {
        nix::errno::Errno::last_raw()
    } else {
        0
    }
}

fn send(to: &OwnedFd, errno: i32) {
    // SAFETY: four bytes of a local value.
    unsafe { libc::write(to.as_raw_fd(), (&raw const errno).cast(), 4) };
}

/// Every call that the table refuses whatever its arguments are, as `(number, errno)`.
fn refused_calls() -> Vec<(i64, i32)> {
    let table = include_str!("../../seccomp/table.txt");
    let parse = |line: &str| {
        let mut words = line.split_whitespace();
        let number = words.next()?.parse().ok()?;
        let errno = match words.nth(1)? {
            "EPERM:" => libc::EPERM,
            "ENOSYS:" => libc::ENOSYS,
            _ => return None,
        };
        Some((number, errno))
    };
    table.lines().filter_map(parse).collect()
}

#[test]
fn every_refused_call_gets_its_errno_from_the_filter() {
    let refused = refused_calls();
    assert!(refused.len() > 80, "{}", refused.len());
    let calls: Vec<_> = refused
        .iter()
        .map(|&(number, _)| (number, HARMLESS))
        .collect();
    let expected: Vec<_> = refused.iter().map(|&(_, errno)| errno).collect();
    assert_eq!(
        answers(&[&base_program(), &run_program()], &calls),
        expected
    );
}

/// Without the filter the kernel answers otherwise, so the test above tests the filter.
#[test]
fn without_the_filter_those_calls_reach_the_kernel() {
    let calls: Vec<_> = [
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_mount,
        libc::SYS_fsopen,
        libc::SYS_bpf,
        libc::SYS_io_uring_setup,
        libc::SYS_io_setup,
        libc::SYS_vmsplice,
        libc::SYS_open_by_handle_at,
    ]
    .map(|number| (number, HARMLESS))
    .into();
    let refused = |errno: &i32| [libc::EPERM, libc::ENOSYS].contains(errno);
    let unfiltered = answers(&[], &calls);
    assert!(!unfiltered.iter().any(refused), "{unfiltered:?}");
}

#[test]
fn unknown_numbers_are_not_there() {
    let calls: Vec<_> = (472..600).map(|number| (number, HARMLESS)).collect();
    let answers = answers(&[&base_program()], &calls);
    assert!(answers.iter().all(|&errno| errno == libc::ENOSYS));
}

#[test]
fn arguments_decide_in_the_kernel_too() {
    let upper = 1 << 40;
    let cases: &[(Call, i32)] = &[
        ((libc::SYS_clone, [0x1000_0011, 0, 0, 0, 0, 0]), libc::EPERM),
        (
            (libc::SYS_clone, [0x1000_0011 | upper, 0, 0, 0, 0, 0]),
            libc::EPERM,
        ),
        ((libc::SYS_socket, [40, 1, 0, 0, 0, 0]), libc::EAFNOSUPPORT),
        (
            (libc::SYS_socket, [40 | upper, 1, 0, 0, 0, 0]),
            libc::EAFNOSUPPORT,
        ),
        ((libc::SYS_socket, [17, 3, 0, 0, 0, 0]), libc::EAFNOSUPPORT),
        ((libc::SYS_socket, [2, 3, 1, 0, 0, 0]), libc::EPERM),
        (
            (libc::SYS_socket, [2, 2, 136, 0, 0, 0]),
            libc::EPROTONOSUPPORT,
        ),
        (
            (libc::SYS_socket, [2, 1, 262, 0, 0, 0]),
            libc::EPROTONOSUPPORT,
        ),
        (
            (libc::SYS_socket, [16, 3, 6, 0, 0, 0]),
            libc::EPROTONOSUPPORT,
        ),
        (
            (libc::SYS_socketpair, [40, 1, 0, -1, 0, 0]),
            libc::EAFNOSUPPORT,
        ),
        (
            (libc::SYS_setsockopt, [-1, 6, 31, -1, 0, 0]),
            libc::ENOPROTOOPT,
        ),
        ((libc::SYS_setsockopt, [-1, 6, 1, -1, 4, 0]), libc::EBADF),
        ((libc::SYS_ioctl, [-1, 0x5412, -1, 0, 0, 0]), libc::EPERM),
        (
            (libc::SYS_ioctl, [-1, 0x5412 | upper, -1, 0, 0, 0]),
            libc::EPERM,
        ),
        (
            (libc::SYS_ioctl, [-1, 0x5000_940E, -1, 0, 0, 0]),
            libc::EPERM,
        ),
        (
            (libc::SYS_ioctl, [-1, 0x4004_9409, -1, 0, 0, 0]),
            libc::EBADF,
        ),
        ((libc::SYS_ioctl, [-1, 0x5401, -1, 0, 0, 0]), libc::EBADF),
        (
            (libc::SYS_personality, [0x0004_0000, 0, 0, 0, 0, 0]),
            libc::EPERM,
        ),
        ((libc::SYS_personality, [0xFFFF_FFFF, 0, 0, 0, 0, 0]), 0),
        ((libc::SYS_socket, [1, 1, 0, 0, 0, 0]), 0),
        ((libc::SYS_socket, [2, 1, 0, 0, 0, 0]), 0),
        ((libc::SYS_socket, [16, 3, 0, 0, 0, 0]), 0),
    ];
    let calls: Vec<_> = cases.iter().map(|&(call, _)| call).collect();
    let expected: Vec<_> = cases.iter().map(|&(_, errno)| errno).collect();
    assert_eq!(answers(&[&base_program()], &calls), expected);
}

#[test]
fn clone3_is_for_pid_1_alone() {
    let too_small = (libc::SYS_clone3, [0; 6]);
    assert_eq!(answers(&[&base_program()], &[too_small]), [libc::EINVAL]);
    assert_eq!(
        answers(&[&base_program(), &run_program()], &[too_small]),
        [libc::ENOSYS]
    );
}

#[test]
fn x32_and_32_bit_calls_kill() {
    let (status, _) = in_child(
        &[&base_program()],
        &[(0x4000_0000 | libc::SYS_getpid, [0; 6])],
    );
    assert_eq!(status.signal(), Some(libc::SIGSYS));
    let program = base_program();
    let by_interrupt = fork_and(|| {
        install(&program)?;
        // SAFETY: the 32-bit getpid (20) takes no arguments; the interrupt clobbers what is declared.
        unsafe {
            std::arch::asm!("int 0x80", inout("rax") 20_i64 => _, out("r8") _, out("r9") _, out("r10") _, out("r11") _)
        };
        Ok(())
    });
    assert_eq!(by_interrupt.signal(), Some(libc::SIGSYS));
}

#[test]
fn a_process_without_the_right_cannot_install() {
    let program = base_program();
    let status = fork_and(|| {
        // SAFETY: integers only; the child has no other user of its ids.
        unsafe { libc::setresuid(65_534, 65_534, 65_534) };
        match install(&program) {
            Err(nix::errno::Errno::EACCES) => Ok(()),
            _ => Err(nix::errno::Errno::EIO),
        }
    });
    assert!(status.success());
}

/// A script under both programs, as a run would have it.
fn filtered(script: &str) -> (ExitStatus, String) {
    let (base, run) = (base_program(), run_program());
    let mut command = Command::new("bash");
    command.args(["-ec", script]);
    // SAFETY: `install` makes one system call and allocates nothing.
    unsafe {
        command.pre_exec(move || Ok(install(&base).and_then(|()| install(&run))?));
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    (output.status, text)
}

#[track_caller]
fn works(script: &str) -> String {
    let (status, text) = filtered(script);
    assert!(status.success(), "{status}: {text}");
    text
}

#[test]
fn shells_and_pipelines_work_under_the_filter() {
    assert_eq!(
        works("seq 1000 | sort -rn | head -1; (sleep 0 & wait)"),
        "1000\n"
    );
    assert!(works("grep Seccomp: /proc/self/status").contains('2'));
}

#[test]
fn python_works_under_the_filter() {
    let script = "python3 - <<'E'\n\
        import asyncio, os, socket, subprocess, tempfile, threading, select\n\
        subprocess.run(['true'], check=True)\n\
        thread = threading.Thread(target=lambda: None); thread.start(); thread.join()\n\
        listener = socket.create_server(('127.0.0.1', 0))\n\
        client = socket.create_connection(listener.getsockname()); client.sendall(b'x')\n\
        assert listener.accept()[0].recv(1) == b'x'\n\
        pair = socket.socketpair(); pair[0].send(b'y'); assert pair[1].recv(1) == b'y'\n\
        async def child():\n\
        \x20   process = await asyncio.create_subprocess_exec('true'); assert await process.wait() == 0\n\
        asyncio.run(child())\n\
        with tempfile.TemporaryFile() as file: file.write(b'z'); os.fsync(file.fileno())\n\
        print('fine')\nE";
    assert_eq!(works(script), "fine\n");
}

#[test]
fn git_and_a_compiler_work_under_the_filter() {
    let script = "dir=$(mktemp -d); trap 'rm -rf $dir' EXIT; cd $dir\n\
        printf 'int main(void) { return 7; }' > a.c; cc a.c -o a; ./a && exit 1 || [ $? = 7 ]\n\
        git init -q .; git add a.c; git -c user.name=n -c user.email=e commit -qm m; git log --oneline | wc -l";
    assert_eq!(works(script).trim(), "1");
}
