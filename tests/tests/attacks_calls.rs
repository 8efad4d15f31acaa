//! Attacks E22 and E25: every system call that the reviewed table denies, by its raw number, from inside a sandbox, as its root; through
//! the doors of 32 bits and of x32 as well; and numbers that nobody has given out.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use lodge_tests::arena::Arena;
use lodge_tests::prober::{self, program};

/// The table as it was reviewed: number, name, verdict and reason.
const TABLE: &str = include_str!("../../daemon/kernel/src/seccomp/table.txt");

/// What each call of the table is answered: an errno, or that the kernel decides, maybe by its arguments.
fn verdicts() -> Result<BTreeMap<u32, &'static str>> {
    let verdict = |line: &'static str| {
        let mut words = line.split_whitespace();
        let number = words.next().context("a number")?.parse()?;
        let verdict = words.nth(1).context("a verdict")?;
        Ok((number, verdict.trim_end_matches(':')))
    };
    TABLE.lines().map(verdict).collect()
}

/// Defines `ask(call)`: what becomes of a child that makes a call, an errno or a signal; one that does not end is ended.
const ASK: &str = r"
def ask(call):
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(2)
        ctypes.set_errno(0)
        r = call()
        e = ctypes.get_errno()
        os.write(tell, (errno.errorcode.get(e, str(e)) if r == -1 else 'OK').encode())
        os._exit(0)
    os.close(tell)
    status = os.waitpid(child, 0)[1]
    answer = os.read(told, 100).decode()
    os.close(told)
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else answer
";

/// Each call that the table denies, by its number.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e22_every_denied_call_by_its_number() -> Result<()> {
    let arena = Arena::new().await?;
    let verdicts = verdicts()?;
    let denied: Vec<(u32, &str)> = verdicts
        .into_iter()
        .filter(|(_, verdict)| matches!(*verdict, "EPERM" | "ENOSYS"))
        .collect();
    ensure!(denied.len() > 80, "only {} are denied", denied.len());
    let numbers: Vec<u32> = denied.iter().map(|(number, _)| *number).collect();
    let body = format!(
        "{ASK}
for n in {numbers:?}:
    print(f'{{n}}: ' + ask(lambda: libc.syscall(ctypes.c_long(n), *[ctypes.c_long(0)] * 6)))"
    );
    let ran = arena.attack_python(&program(&body)).await?;
    let answers = prober::answers(&ran)?;
    for (number, verdict) in &denied {
        let answer = answers.get(&number.to_string()).context("an answer")?;
        ensure!(
            answer == verdict,
            "call {number} is answered {answer}, and the table says {verdict}"
        );
    }
    arena.check().await
}

/// The same numbers through the door of x32, and every number through that of 32 bits: whoever knocks there is killed, and nothing is
/// done.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e22_other_doors() -> Result<()> {
    let arena = Arena::new().await?;
    let body = format!(
        "{ASK}
import mmap
X32 = 0x40000000
# push rbx; mov eax, edi; xor ebx, ebx; xor ecx, ecx; xor edx, edx; int 0x80; pop rbx; ret
CODE = bytes.fromhex('5389f831db31c931d2cd805bc3')
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(CODE)
door = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
answers = {{}}
for n in list(range(0, 470, 7)) + [39, 56, 57, 59, 101, 102, 272, 321, 425]:
    x32 = ask(lambda: libc.syscall(ctypes.c_long(X32 | n), *[ctypes.c_long(0)] * 6))
    answers.setdefault('x32 ' + x32, []).append(n)
    # A refusal comes back as a negative number, and no errno.
    def knock():
        r = door(n)
        if -4096 < r < 0: ctypes.set_errno(-r); return -1
        return r
    answers.setdefault('int80 ' + ask(knock), []).append(n)
for answer, numbers in answers.items(): print(f'{{answer}}: {{len(numbers)}} {{numbers[:5]}}')"
    );
    let ran = arena.attack_python(&program(&body)).await?;
    let answers = prober::answers(&ran)?;
    let kinds: Vec<&str> = answers.keys().map(String::as_str).collect();
    ensure!(kinds == ["int80 SIGSYS", "x32 SIGSYS"], "{}", ran.story());
    arena.check().await
}

/// Numbers that are beyond the table: unknown, none of them hangs, none of them works.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e25_numbers_that_nobody_has() -> Result<()> {
    let arena = Arena::new().await?;
    let first = verdicts()?.into_keys().max().context("a number")? + 1;
    let body = format!(
        "{ASK}
for n in list(range({first}, 600)) + [1000, 65536, 1 << 29, (1 << 30) - 1, (1 << 31) - 1, -1]:
    print(f'{{n}}: ' + ask(lambda: libc.syscall(ctypes.c_long(n), *[ctypes.c_long(-1)] * 6)))"
    );
    let ran = arena.attack_python(&program(&body)).await?;
    let answers = prober::answers(&ran)?;
    ensure!(answers.len() > 100, "{}", ran.story());
    for (number, answer) in &answers {
        ensure!(
            answer == "ENOSYS" || (answer == "SIGSYS" && number.len() > 9),
            "{number}: {answer}"
        );
    }
    arena.check().await
}
