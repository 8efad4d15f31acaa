//! Out of the sandbox, and up in privilege.

use super::{Row, python, row, shell};

const FILES: &str = "the transfer of files";

pub(super) const ROWS: &[Row] = &[
    row("E01", "reach for a file of the host").star(),
    row("E02", "look for the old root").star(),
    row("E04", "climb above the root").star(),
    row("E05", "mount anything")
        .star()
        .probe(
            python(
                "
say('tmpfs', 'mount', b'x', b'/mnt', b'tmpfs', 0, None)
say('bind', 'mount', b'/proc', b'/mnt', None, 4096, None)
say('namespace', 'unshare', CLONE_NEWNS)
say('fsopen', 'fsopen', b'tmpfs', 0)
say('open_tree', 'open_tree', -100, b'/proc', 1)
",
                &[
                    ("tmpfs", "EPERM"),
                    ("bind", "EPERM"),
                    ("namespace", "EPERM"),
                    ("fsopen", "EPERM"),
                    ("open_tree", "EPERM"),
                ],
            )
            .harmless(),
        )
        .falls_without(&["base-filter,namespace-quotas,bounding-set"]),
    row("E06", "take the masks away").star(),
    row("E07", "a user namespace within, by every door")
        .star()
        .probe(
            python(
                "
say('unshare', 'unshare', CLONE_NEWUSER)
say('clone', 'clone', CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0)
",
                &[("unshare", "EPERM"), ("clone", "EPERM")],
            )
            .harmless(),
        )
        .falls_without(&["base-filter"])
        .test_falls(&[(
            "base-filter,namespace-quotas",
            "attack_e07_nested_user_namespace",
        )]),
    row("E08", "write settings of the host").star().test_falls(&[(
        "read-only-proc",
        "attack_e08_write_settings_of_the_host",
    )]),
    row("E09", "keys, memory and log of the kernel")
        .star()
        .probe(
            shell(
                "for f in /proc/kcore /dev/kmsg /dev/mem /proc/kmsg; do timeout 1 head -c 1 $f 2>/dev/null | wc -c; done; \
                 head -n 50 /proc/kallsyms 2>/dev/null | grep -vc '^0000000000000000 '; timeout 1 dmesg 2>/dev/null | wc -l",
                "0\n0\n0\n0\n0\n0\n",
            )
            .harmless(),
        ),
    row("E10", "overwrite the program of PID 1").star(),
    row("E12", "trace what enters the sandbox")
        .star()
        .test_falls(&[("non-dumpable", "attack_e12_root_traces_the_entering_child")]),
    row("E13", "descriptors that were left open")
        .star()
        .test_falls(&[("non-dumpable", "attack_e13_leaked_descriptors")]),
    row("E14", "a working directory through a descriptor").star(),
    row("E15", "look into PID 1")
        .star()
        .test_falls(&[("non-dumpable", "attack_e15_look_into_pid_1")]),
    row("E16", "capabilities after a change of user")
        .star()
        .probe(
            shell(
                "grep -h '^CapBnd' /proc/self/status | cut -f2",
                "00000000a00c05fb\n",
            )
            .harmless(),
        )
        .falls_without(&["bounding-set"])
        .test_falls(&[("bounding-set", "attack_e16_capabilities_after_setuid")]),
    row("E17", "root over objects of the host").star(),
    row("E18", "device nodes that are smuggled in").waits_for(FILES),
    row("E19", "open by handle").star(),
    row("E20", "mount a hierarchy of cgroups")
        .star()
        .test_falls(&[(
            "base-filter,bounding-set,namespace-quotas",
            "attack_e20_mount_a_hierarchy_of_cgroups",
        )]),
    row("E21", "leave the cgroup").star(),
    row("E22", "load code into the kernel")
        .star()
        .probe(
            python(
                "
for name in 'bpf perf_event_open userfaultfd io_uring_setup keyctl add_key kexec_load init_module'.split():
    say(name, name, 0, 0, 0, 0, 0)
",
                &[
                    ("bpf", "EPERM"),
                    ("perf_event_open", "EPERM"),
                    ("userfaultfd", "ENOSYS"),
                    ("io_uring_setup", "ENOSYS"),
                    ("keyctl", "ENOSYS"),
                    ("add_key", "ENOSYS"),
                    ("kexec_load", "EPERM"),
                    ("init_module", "EPERM"),
                ],
            )
            .harmless(),
        )
        .falls_without(&["base-filter"])
        .test_falls(&[("base-filter", "attack_e22_every_denied_call_by_its_number")]),
    row("E24", "take the filter away")
        .star()
        .test_falls(&[("base-filter", "attack_e24_remove_the_filter")]),
    row("E25", "numbers that no system call has"),
    row("E26", "exotic families of sockets")
        .star()
        .probe(
            python(
                "
import socket
open_ = set()
for family in range(46):
    for kind in range(1, 7):
        try: socket.socket(family, kind).close(); open_.add(family)
        except OSError: pass
print('families: ' + ' '.join(map(str, sorted(open_))))
",
                &[("families", "1 2 10 16")],
            )
            .harmless(),
        )
        .falls_without(&["base-filter"]),
    row("E28", "socket options that open a door").probe(
        python(
            "
import socket
tcp = socket.socket()
server = socket.socket(); server.bind(('127.0.0.1', 0)); server.listen()
tcp.connect(server.getsockname())
tell('tls', lambda: tcp.setsockopt(6, 31, b'tls'))
tell('espintcp', lambda: tcp.setsockopt(6, 31, b'espintcp'))
udp = socket.socket(type=socket.SOCK_DGRAM)
tell('esp in udp', lambda: udp.setsockopt(17, 100, 2))
tell('rules', lambda: udp.setsockopt(0, 64, bytes(128)))
",
            &[
                ("tls", "EPERM|ENOPROTOOPT"),
                ("espintcp", "EPERM|ENOPROTOOPT"),
                ("esp in udp", "EPERM|ENOPROTOOPT"),
                ("rules", "EPERM|ENOPROTOOPT"),
            ],
        )
        .harmless(),
    )
    .falls_without(&["base-filter"]),
    row("E29", "file systems that show the kernel's insides").probe(
        python(
            "
for fs in 'binfmt_misc debugfs tracefs bpf securityfs configfs'.split():
    say(fs, 'mount', b'x', b'/mnt', fs.encode(), 0, None)
shown = [d for d in ['/sys/kernel/debug', '/sys/kernel/tracing', '/sys/fs/bpf', '/sys/kernel/security', '/sys/kernel/config',
    '/proc/sys/fs/binfmt_misc'] if os.path.isdir(d) and os.listdir(d)]
print('shown: %s' % shown)
",
            &[
                ("binfmt_misc", "EPERM"),
                ("debugfs", "EPERM"),
                ("tracefs", "EPERM"),
                ("bpf", "EPERM"),
                ("securityfs", "EPERM"),
                ("configfs", "EPERM"),
                ("shown", "[]"),
            ],
        )
        .harmless(),
    ),
    row("E30", "files of the kernel that anybody may write")
        .test_falls(&[("masks", "attack_e30_writable_files_of_the_kernel")]),
    row("E31", "mount points of the image are links").star(),
    row("E33", "an image brings its own /dev").star(),
    row("E34", "an image brings directories where the kernel's are"),
    row("E35", "signal the host and the neighbour").star(),
    row("E37", "enter the neighbour's namespaces").star(),
    row("E38", "send descriptors into sockets of the daemon").probe(
        shell(
            "tail -n +2 /proc/net/unix | wc -l; find / -xdev -type s 2>/dev/null | wc -l",
            "0\n0\n",
        )
        .harmless(),
    ),
    row("E39", "the program of the helper for files").waits_for(FILES),
    row("E41", "bytes that command a terminal")
        .named(&["attack_e41_names_from_a_sandbox_cannot_command_the_terminal"]),
    row("E42", "code in memory is no boundary: allowed").probe(python(
        "
import mmap
fd = os.memfd_create('x'); os.write(fd, open('/bin/true', 'rb').read())
pid = os.fork()
if pid == 0: os.execv('/proc/self/fd/%d' % fd, ['x'])
print('memfd: %d' % os.waitpid(pid, 0)[1])
tell('writable code', lambda: mmap.mmap(-1, 4096, prot=7))
",
        &[("memfd", "0"), ("writable code", "OK")],
    )),
    row("E43", "setuid files by copying up").star(),
    row("E44", "a user of the host runs a setuid file").star(),
    row("E45", "flags and modes that keep files from being deleted").probe(python(
        "
import fcntl
os.makedirs('/root/d/e'); open('/root/d/e/f', 'w').close()
fd = os.open('/root/d/e/f', os.O_RDONLY)
for flag, bit in [('immutable', 0x10), ('append', 0x20)]:
    tell(flag, lambda: fcntl.ioctl(fd, 0x40086602, struct.pack('l', bit)))
tell('security', lambda: os.setxattr('/root/d/e/f', 'security.x', b'1'))
for path in ['/root/d/e/f', '/root/d/e', '/root/d']: os.chmod(path, 0)
",
        &[
            ("immutable", "EPERM|ENOTTY|EOPNOTSUPP"),
            ("append", "EPERM|ENOTTY|EOPNOTSUPP"),
            ("security", "EPERM|EOPNOTSUPP"),
        ],
    )),
    row("E46", "set the clock").probe(python(
        "
now = time.time()
tell('realtime', lambda: time.clock_settime(time.CLOCK_REALTIME, now + 3600))
timex = ctypes.create_string_buffer(struct.pack('I4xq', 2, 1 << 20) + bytes(240))
ctypes.set_errno(0)
r = libc.adjtimex(timex)
print('adjtimex: ' + ('OK' if r >= 0 else errno.errorcode[ctypes.get_errno()]))
",
        &[("realtime", "EPERM"), ("adjtimex", "EPERM")],
    )),
    row("E47", "change the host's name").probe(python(
        "
import socket
tell('name', lambda: socket.sethostname('evil'))
",
        &[("name", "EPERM")],
    )),
    row("E50", "known holes of the kernel").see("`make test-vm`: only in a machine that may crash"),
    row("E51", "writes to a file that two sandboxes share").star(),
    row("E52", "the kernel is tainted or complains").see("`make redteam` compares /proc/sys/kernel/tainted before and after"),
    row("E53", "a kernel with known holes").see("not there yet: `lodge doctor` knows no versions"),
    row("E54", "random system calls for minutes").see("`make test-vm`: only in a machine that may crash"),
];
