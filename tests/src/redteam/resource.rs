//! Resources used up. The neighbour's `true` and the daemon's health are watched while a probe runs.

use lodge_proto::v1::EndReason;

use super::{Bounds, Row, python, row, shell};

const MIB: i64 = 1 << 20;
const NONE: Bounds = Bounds {
    memory: 0,
    pids: 0,
    files: 0,
};

pub(super) const ROWS: &[Row] = &[
    row("R01", "fork bomb")
        .star()
        .probe(
            python(
                "
n = 0
try:
    while n < 200:
        if os.fork() == 0: time.sleep(60); os._exit(0)
        n += 1
    print('forks: 200')
except OSError as e: print('forks: ' + errno.errorcode[e.errno])
",
                &[("forks", "EAGAIN")],
            )
            .within(Bounds { pids: 64, ..NONE }),
        )
        .falls_without(&["pids"]),
    row("R02", "fork bomb that ignores signals").star(),
    row("R03", "thread bomb"),
    row("R04", "memory bomb")
        .star()
        .probe(
            python(
                "b = bytearray(192 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1\nprint(len(b))",
                &[],
            )
            .ends(EndReason::OomKilled)
            .within(Bounds {
                memory: 96 * MIB,
                ..NONE
            }),
        )
        .falls_without(&["memory"]),
    row("R06", "a slow leak up to the limit, and a run after it"),
    row("R07", "file systems in memory").star(),
    row("R09", "locked memory and huge pages").probe(python(
        "
import mmap
size = 128 << 20
m = mmap.mmap(-1, size)
ctypes.set_errno(0)
address = ctypes.addressof(ctypes.c_char.from_buffer(m))
r = libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(size))
print('mlock: ' + ('OK' if r == 0 else errno.errorcode[ctypes.get_errno()]))
tell('huge', lambda: mmap.mmap(-1, 2 << 20, flags=0x40022))
",
        &[("mlock", "ENOMEM|EPERM"), ("huge", "ENOMEM")],
    ))
    ,
    row("R10", "fill the disk").star(),
    row("R12", "ioctls of btrfs").star().test_falls(&[("base-filter", "attack_r12_btrfs_ioctls")]),
    row("R13", "a storm of syncs: neighbours' disk may be slow, their runs are not").probe(shell(
        "cd /root; end=$((SECONDS + 5)); for i in 1 2 3 4; do (while [ $SECONDS -lt $end ]; do \
         dd if=/dev/zero of=f$i bs=4k count=1 conv=fsync status=none; sync; done) & done; wait; echo done",
        "done\n",
    )),
    row("R14", "two gigabytes that are still to be written").probe(shell(
        "cd /root; dd if=/dev/zero of=f bs=1M count=2048 status=none; stat -c %s f; rm f",
        "2147483648\n",
    )),
    row("R15", "open files of every kind")
        .star()
        .probe(
            python(
                "
n = 0
try:
    while n < 5000: os.dup(1); n += 1
    print('files: 5000')
except OSError as e: print('files: ' + errno.errorcode[e.errno])
",
                &[("files", "EMFILE")],
            )
            .within(Bounds { files: 512, ..NONE }),
        )
        .falls_without(&["open-files"]),
    row("R17", "the pool of asynchronous requests")
        .star()
        .test_falls(&[("base-filter", "attack_r17_pool_of_asynchronous_requests")]),
    row("R18", "twenty thousand pids one after the other").probe(python(
        "
for i in range(20000):
    pid = os.fork()
    if pid == 0: os._exit(0)
    os.waitpid(pid, 0)
print('done: OK')
",
        &[("done", "OK")],
    )),
    row("R19", "spin with priority")
        .star()
        .test_falls(&[("cpu", "attack_r19_spin_with_priority")]),
    row("R20", "output without end").star(),
    row("R21", "both streams without end").star(),
    row("R22", "readers that stall"),
    row("R24", "bytes that are no text").star(),
    row("R25", "control bytes are bytes").probe(shell(
        r"printf '\033[2J\033]0;x\007\033[200~\a'",
        "\x1b[2J\x1b]0;x\x07\x1b[200~\x07",
    )),
    row("R26", "a program that closes its output, or makes it a pipe to itself").probe(shell(
        "bash -c 'exec 1>&-; sleep 0.1'; bash -c 'exec 1> >(cat >/dev/null); echo x'; echo done; exec 1>&- 2>&-",
        "done\n",
    )),
    row("R28", "a thousand runs at once"),
    row("R29", "as many sandboxes as there may be").named(&["creates_beyond_the_cap_are_refused"]),
    row("R30", "two thousand sandboxes one after the other"),
    row("R31", "buffers of thousands of sockets").probe(
        python(
            "
import socket
kept, sent = [], 0
server = socket.socket(); server.bind(('127.0.0.1', 0)); server.listen(4096)
try:
    for i in range(400):
        client = socket.socket(); client.connect(server.getsockname()); client.setblocking(False); kept.append(client)
        try:
            while True: sent += client.send(bytes(65536))
        except BlockingIOError: pass
    print('sockets: 400')
except OSError as e: print('sockets: ' + errno.errorcode[e.errno])
",
            &[("sockets", "400|ENOMEM|ENOBUFS|EMFILE")],
        )
        .within(Bounds {
            memory: 128 * MIB,
            ..NONE
        }),
    ),
    row("R32", "tables of neighbours, connections and ports").waits_for("the network"),
    row("R33", "a pipeline of five hundred, and arguments beyond the kernel's bounds").probe(python(
        "
import subprocess
chain = 'echo x' + '|cat' * 500
print('pipeline: ' + subprocess.run(['bash', '-c', chain], capture_output=True, text=True).stdout.strip())
tell('one argument', lambda: subprocess.run(['true', 'x' * (128 << 10)]))
tell('many', lambda: subprocess.run(['true'] + ['x' * 64] * 100000))
tell('environment', lambda: subprocess.run(['true'], env={'PATH': '/bin', 'X': 'x' * (2 << 20)}))
",
        &[
            ("pipeline", "x"),
            ("one argument", "E2BIG"),
            ("many", "E2BIG"),
            ("environment", "E2BIG"),
        ],
    )),
    row("R34", "names that are not there, without end").probe(
        python(
            "
end = time.monotonic() + 5
n = 0
while time.monotonic() < end:
    for i in range(1000):
        try: os.stat('/tmp/%d-%d' % (n, i))
        except OSError: pass
    n += 1
print('done: OK')
",
            &[("done", "OK")],
        )
        .within(Bounds {
            memory: 128 * MIB,
            ..NONE
        }),
    ),
    row("R35", "a million colour codes").probe(
        shell(
            "yes \"$(printf '\\033[31mx\\033[0m')\" | head -n 1000000",
            "",
        )
        .ends(EndReason::Exited),
    ),
    row("R36", "programs that crash without end").probe(shell(
        "for i in $(seq 300); do bash -c 'kill -SEGV $$'; done 2>/dev/null; echo done",
        "done\n",
    )),
    row("R37", "tasks that no signal reaches").probe(python(
        "
import fcntl
fd = os.open('/', os.O_RDONLY)
tell('freeze', lambda: fcntl.ioctl(fd, 0xC0045877, 0))
tell('fuse', lambda: os.open('/dev/fuse', os.O_RDWR))
",
        &[("freeze", "EPERM|ENOTTY|EOPNOTSUPP"), ("fuse", "ENOENT|EPERM|EACCES")],
    )),
    row("R38", "terminals without end").probe(python(
        "
n = 0
try:
    while n < 5000: os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY); n += 1
    print('terminals: 5000')
except OSError as e: print('terminals: ' + errno.errorcode[e.errno])
",
        &[("terminals", "ENOSPC|EMFILE")],
    )),
    row("R39", "attributes as large as they may be").star(),
];
