//! Attacks by the shape of things: trees of processes that will not end, tables that are counted once for the host, and a shell
//! that is none.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::arena::{Arena, no_timeout};
use lodge_tests::prober::{self, program};
use lodge_tests::room::Command;

const MIB: i64 = 1 << 20;

/// A fork bomb whose processes ignore every signal that can be, leave their parents, sessions and groups, and go by another name.
const RESTLESS_BOMB: &str = r"
import ctypes, os, random, signal, time
libc = ctypes.CDLL(None)
for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGTSTP, signal.SIGCHLD):
    signal.signal(s, signal.SIG_IGN)
main = os.getpid()
while True:
    try: child = os.fork()
    except OSError: time.sleep(0.01); continue
    if child == 0:
        os.setsid()
        libc.prctl(15, random.choice([b'lodged', b'init', b'kthreadd', b'(x) R 1']), 0, 0, 0)
        random.seed()
    elif os.getpid() != main and random.random() < 0.5: os._exit(0)
";

/// As R01, by processes that do not want to be found: the limit holds them, others do not notice, and the timeout ends them all.
#[tokio::test(flavor = "multi_thread")]
async fn attack_r02_fork_bomb_that_ignores_signals() -> Result<()> {
    let limits = pb::Limits {
        pids: Some(64),
        memory_bytes: Some(256 * MIB),
        ..Default::default()
    };
    let arena = Arena::with_limits(limits).await?;
    let bomb = arena.attacker.python(RESTLESS_BOMB).root();
    let start = Instant::now();
    let bomb = bomb.timeout(Duration::from_secs(2));
    let ran = arena.while_others_are_fine(bomb).await?;
    ensure!(
        start.elapsed() < Duration::from_millis(2000 + 2000 + 1500),
        "it took {:?}",
        start.elapsed()
    );
    ran.timed_out()?;
    arena.check_after(&ran).await
}

/// Processes that open as many descriptors as they may.
const OPENERS: usize = 98;
/// Open files of each.
const FILES_EACH: usize = 256;
/// What else on the host may open files meanwhile.
const FILES_ELSEWHERE: usize = 4096;

/// Opens files of one kind until it may not, in each of so many processes, and holds them.
const FILE_BOMB: &str = r"
import errno, os, select, socket, struct
libc = __import__('ctypes').CDLL(None, use_errno=True)
import ctypes
def made(fd):
    if fd < 0: raise OSError(ctypes.get_errno(), 'refused')
    return fd
keep = []
def kept(x): keep.append(x); return x
KINDS = [
    ('file', lambda: os.open('/dev/null', os.O_RDONLY)),
    ('pipe', lambda: os.pipe()),
    ('epoll', lambda: kept(select.epoll())),
    ('eventfd', lambda: made(libc.eventfd(0, 0))),
    ('timerfd', lambda: made(libc.timerfd_create(1, 0))),
    ('pidfd', lambda: made(libc.syscall(434, os.getpid(), 0))),
    ('socket', lambda: kept(socket.socketpair())),
    ('memfd', lambda: made(libc.memfd_create(b'x', 0))),
    ('inotify', lambda: made(libc.inotify_init1(0))),
]
told, tell = os.pipe()
for n in range(OPENERS):
    if os.fork(): continue
    name, make = KINDS[n % len(KINDS)]
    # Memory of a child that forks is not what is tried here.
    try:
        while True: make()
    except OSError as e: answer = errno.errorcode[e.errno]
    os.write(tell, ('%s: %s\n' % (name, answer)).encode())
    while True: __import__('signal').pause()
said, text = 0, b''
while text.count(b'\n') < OPENERS: text += os.read(told, 4096)
print(''.join(sorted(set(text.decode().splitlines(True)))), end='')
print('all open', flush=True)
__import__('signal').pause()
";

fn open_files_of_host() -> Result<usize> {
    let text = fs::read_to_string("/proc/sys/fs/file-nr").context("file-nr")?;
    let first = text.split_whitespace().next().context("a number")?;
    Ok(first.parse()?)
}

/// Descriptors of every kind, in a hundred processes, each until it may open no more: the limit of the process answers, what is open
/// on the host is no more than limits say, a neighbour opens what it likes, and all of it goes with the run.
#[tokio::test(flavor = "multi_thread")]
async fn attack_r15_descriptors_of_every_kind() -> Result<()> {
    let limits = pb::Limits {
        pids: Some(128),
        open_files: Some(FILES_EACH.try_into()?),
        ..Default::default()
    };
    let arena = Arena::with_limits(limits).await?;
    let before = open_files_of_host()?;
    let bomb = FILE_BOMB.replace("OPENERS", &OPENERS.to_string());
    let mut live = arena
        .attacker
        .python(&bomb)
        .root()
        .with(no_timeout)
        .start()
        .await?;
    live.wait_for("all open").await?;
    let text = String::from_utf8_lossy(&live.stdout).into_owned();
    let answers: Vec<&str> = text.lines().filter(|l| l.contains(": ")).collect();
    ensure!(
        answers.len() == 9 && answers.iter().all(|l| l.ends_with(": EMFILE")),
        "{text}"
    );
    let during = open_files_of_host()?;
    ensure!(
        during <= before + OPENERS * FILES_EACH + FILES_ELSEWHERE,
        "{during} files are open on the host, {before} before"
    );
    arena.others_are_fine().await?;
    // Also of what the kernel counts for each user: the neighbour's are other users.
    let opens = "import ctypes, os\nlibc = ctypes.CDLL(None)\n\
        for n in range(100): assert libc.inotify_init1(0) >= 0 and libc.epoll_create1(0) >= 0 and os.pipe()";
    arena.neighbour.python(opens).await?.exited(0)?;
    arena.attacker.kill(&live.run_id).await?;
    live.end().await?;
    let left = arena.attacker.processes_of(&live.run_id).await?;
    ensure!(left.is_empty(), "processes {left:?} are left");
    let (start, settles) = (Instant::now(), Duration::from_secs(5));
    while open_files_of_host()? > before + FILES_ELSEWHERE {
        ensure!(start.elapsed() < settles, "files stay open on the host");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    arena.check().await
}

fn aio_of_host() -> Result<u64> {
    let text = fs::read_to_string("/proc/sys/fs/aio-nr").context("aio-nr")?;
    Ok(text.trim().parse()?)
}

/// The host has one pool of asynchronous requests for all: the calls that take from it are not there.
#[tokio::test(flavor = "multi_thread")]
async fn attack_r17_pool_of_asynchronous_requests() -> Result<()> {
    let arena = Arena::new().await?;
    let before = aio_of_host()?;
    let body = r"
x86 = platform.machine() == 'x86_64'
NUMBER.update(io_setup=206 if x86 else 0, io_destroy=207 if x86 else 1, io_submit=209 if x86 else 2,
    io_cancel=210 if x86 else 3, io_getevents=208 if x86 else 4, io_pgetevents=333 if x86 else 292)
seen = set()
for n in range(2000):
    context = ctypes.c_ulong(0)
    r = libc.syscall(ctypes.c_long(NUMBER['io_setup']), ctypes.c_long(65536 >> (n % 16)), ctypes.byref(context))
    seen.add('OK' if r >= 0 else errno.errorcode[ctypes.get_errno()])
print('io_setup: ' + ' '.join(sorted(seen)), flush=True)
for name in ['io_destroy', 'io_submit', 'io_cancel', 'io_getevents', 'io_pgetevents']: say(name, name, 0, 0, 0, 0, 0, 0)
time.sleep(0.5)
";
    let ran = arena.attack_python(&program(body)).await?;
    let names = [
        "io_setup",
        "io_destroy",
        "io_submit",
        "io_cancel",
        "io_getevents",
        "io_pgetevents",
    ];
    prober::expect(&ran, &names.map(|n| (n, "ENOSYS")))?;
    let after = aio_of_host()?;
    ensure!(
        after <= before,
        "{after} requests are set up, {before} before"
    );
    arena.check().await
}

/// A run of a shell that is none is over within this time.
const REFUSED_WITHIN: Duration = Duration::from_secs(5);

/// How a shell becomes another thing. `path` is its place.
const SHAPES: &[(&str, &str)] = &[
    ("FIFO", "os.mkfifo(path, 0o755)"),
    (
        "socket",
        "s = socket.socket(socket.AF_UNIX); s.bind(path); os.chmod(path, 0o755)",
    ),
    ("device", "os.symlink('/dev/zero', path)"),
    ("terminal", "os.symlink('/dev/tty', path)"),
    (
        "sparse",
        "open(path, 'w').close(); os.truncate(path, 1 << 40); os.chmod(path, 0o755)",
    ),
    ("loop", "os.symlink(path, path)"),
    ("directory", "os.mkdir(path)"),
    ("empty", "open(path, 'w').close(); os.chmod(path, 0o755)"),
    (
        "own interpreter",
        "open(path, 'w').write('#!' + path + '\\n'); os.chmod(path, 0o755)",
    ),
    (
        "interpreters in a ring",
        "open(path, 'w').write('#!/tmp/ring\\n'); open('/tmp/ring', 'w').write('#!' + path + '\\n')
os.chmod(path, 0o755); os.chmod('/tmp/ring', 0o755)",
    ),
    ("descriptor of PID 1", "os.symlink('/proc/1/fd/0', path)"),
    ("own descriptor", "os.symlink('/proc/self/fd/0', path)"),
    ("nothing", "pass"),
];

/// The shell as a thing that is no program, of every kind on which an open or a read could wait: each run ends at once with an error
/// that is told, the sandbox stops, starts and is mended from inside, and it is deleted while its shell is none.
#[tokio::test(flavor = "multi_thread")]
async fn attack_p10_shell_that_is_no_program() -> Result<()> {
    let arena = Arena::new().await?;
    let keep = "import os, shutil
os.makedirs('/root/keep')
for n in ('sh', 'bash'): shutil.copy(os.path.realpath('/bin/' + n), '/root/keep/' + n)";
    arena.attack_python(keep).await?.exited(0)?;
    for (shape, make) in SHAPES {
        let replace = format!(
            "import os, socket
for path in ('/bin/sh', '/bin/bash'):
    if os.path.lexists(path): os.rmdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
    {}",
            make.replace('\n', "\n    ")
        );
        arena.attack_python(&replace).await?.exited(0)?;
        let attacker = &arena.attacker;
        refused(&arena, shape, attacker.run("true")).await?;
        refused(&arena, shape, attacker.run("true").root()).await?;
        refused(&arena, shape, attacker.argv(&["/bin/sh", "-c", "true"])).await?;
        refused(&arena, shape, attacker.argv(&["bash"]).stdin("true\n")).await?;
        let long = format!("true # {}", "x".repeat(200 << 10));
        refused(&arena, shape, attacker.run(long)).await?;
    }
    arena.attacker.stop().await?;
    arena.attacker.start().await?;
    refused(&arena, "nothing", arena.attacker.run("true")).await?;
    let mend =
        "import os, shutil\nfor n in ('sh', 'bash'): shutil.copy('/root/keep/' + n, '/bin/' + n)";
    arena.attack_python(mend).await?.exited(0)?;
    arena.attack("true").await?.exited(0)?;
    let last =
        "import os\nfor n in ('sh', 'bash'): os.unlink('/bin/' + n); os.mkfifo('/bin/' + n, 0o755)";
    arena.attack_python(last).await?.exited(0)?;
    arena.check().await
}

/// Fails unless a run ends soon, with the exit code of a command that is none.
async fn refused(arena: &Arena, shape: &str, command: Command) -> Result<()> {
    let start = Instant::now();
    let ran = arena.unseen(command.timeout(Duration::from_secs(20)).await?)?;
    let took = start.elapsed();
    ensure!(
        took < REFUSED_WITHIN && [126, 127].contains(&ran.code()),
        "a shell that is {shape}: after {took:?} {}",
        ran.story()
    );
    Ok(())
}
