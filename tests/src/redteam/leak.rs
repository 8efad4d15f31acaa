//! What is to be seen from inside.

use super::{Row, python, row, shell};

pub(super) const ROWS: &[Row] = &[
    row("L01", "environment and files of a neighbour").star(),
    row("L02", "environment of the daemon").star(),
    row("L03", "the secret of a former run").star(),
    row("L05", "the secret of another live run of the same user: visible by design"),
    row("L06", "secrets in logs and state").star(),
    row("L07", "a shell that prints what it does prints secrets").see("SECURITY.md: output is the caller's"),
    row("L08", "paths and ids of the host")
        .probe(
            shell(
                "cat /proc/self/mountinfo /proc/self/cgroup /proc/swaps /proc/diskstats /proc/partitions 2>/dev/null \
                 | grep -cE '/(var|home|root|run|work|tmp)/|sd[a-z]|vd[a-z]|nvme|loop[0-9]'",
                "0\n",
            )
            .harmless(),
        )
        .test_falls(&[("masks", "attack_l08_what_the_kernel_tells_of_the_host")]),
    row("L09", "load and size of the host: accepted, and no more than these").probe(shell(
        "cd /proc; for f in cpuinfo loadavg meminfo stat uptime vmstat zoneinfo pressure/cpu interrupts softirqs \
         buddyinfo pagetypeinfo slabinfo timer_list; do [ \"$(head -c 1 $f 2>/dev/null | wc -c)\" = 1 ] && echo $f; done; true",
        "cpuinfo\nloadavg\nmeminfo\nstat\nuptime\nvmstat\nzoneinfo\nsoftirqs\nbuddyinfo\n",
    )),
    row("L11", "what a deleted sandbox of the same name left"),
    row("L12", "deleted files after a snapshot").waits_for("snapshots"),
    row("L13", "paths of the host in errors"),
    row("L14", "whether an id of somebody else exists").waits_for("tokens"),
    row("L15", "core files").probe(shell(
        "ulimit -c unlimited 2>/dev/null; ulimit -c; cd /root; bash -c 'kill -SEGV $$'; ls -A | grep -c core",
        "0\n0\n",
    )),
    row("L17", "addresses of the kernel")
        .probe(
            python(
                "
def read(path):
    try: return open(path).read()
    except OSError as e: return errno.errorcode[e.errno]
server = __import__('socket').socket(1, 1); server.bind('/tmp/x')
print('stack: ' + read('/proc/self/stack').strip().split('\\n')[0])
print('symbols: %d' % sum(1 for l in read('/proc/kallsyms').split('\\n') if l and not l.startswith('0' * 16)))
print('sockets: %d' % sum(1 for l in read('/proc/net/unix').split('\\n')[1:] if l.startswith('ffff')))
",
                &[("stack", "EACCES|EPERM|"), ("symbols", "0"), ("sockets", "0")],
            )
            .harmless(),
        ),
];
