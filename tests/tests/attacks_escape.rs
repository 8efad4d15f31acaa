//! Attacks E01 to E35 of the catalogue: out of the sandbox and up in privilege. Each runs as root inside.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lodge_tests::arena::Arena;
use lodge_tests::prober::{self, program};
use lodge_tests::storage::Driver;
use sha2::{Digest, Sha256};
use tonic::Code;

/// Reaching for a file of the host through every `/proc/*/root`, and by name through all that is mounted: nothing is
/// found, and no process but the sandbox's own is listed.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e01_reach_for_a_host_file() -> Result<()> {
    let arena = Arena::new().await?;
    let file = arena.host_canary_file();
    let path = file.display();
    arena
        .attack(&format!(
            "cat {path} /proc/1/root{path} /proc/*/root{path} /proc/*/cwd{path} 2>&1"
        ))
        .await?;
    let found = arena
        .attack("find / -name 'CANARY_HOST*' -not -path '/proc/*' 2>/dev/null")
        .await?;
    ensure!(found.text().is_empty(), "found: {}", found.story());
    let listed = arena
        .attack("cd /proc; for p in [0-9]*; do [ -e $p/status ] && echo $p; done")
        .await?;
    let pids: Vec<i32> = listed
        .ok()?
        .lines()
        .filter_map(|l| l.parse().ok())
        .collect();
    // PID 1, the shell, and what the API lists: nothing else.
    ensure!(
        pids.len() <= 3 && pids.contains(&1),
        "listed pids: {pids:?}"
    );
    arena.check().await
}

/// Looking for the old root: no mount shows a path of the host, and no directory is left from pivoting. On btrfs the kernel tells
/// of a root where it lies on its file system; of a pool that is a number alone (`pool.rs`).
#[tokio::test(flavor = "multi_thread")]
async fn attack_e02_look_for_the_old_root() -> Result<()> {
    let arena = Arena::new().await?;
    let mounts = arena.attack("cat /proc/self/mountinfo").await?.ok()?;
    let state = arena.daemon.slot().state().to_string_lossy().into_owned();
    let home = arena.daemon.slot().home().to_string_lossy().into_owned();
    let driver = Driver::of_tests()?;
    for line in mounts.lines() {
        let is_btrfs_root = driver == Driver::Btrfs && line.contains(" / rw");
        ensure!(
            is_btrfs_root || (!line.contains(&state) && !line.contains(&home)),
            "a path of the host: {line}"
        );
        let point = line.split(' ').nth(4).context("a mount point")?;
        let known = point == "/"
            || ["/proc", "/sys", "/dev", "/etc"]
                .iter()
                .any(|top| point == *top || point.starts_with(&format!("{top}/")));
        ensure!(known, "an unexpected mount: {line}");
    }
    ensure!(
        mounts
            .lines()
            .any(|l| l.contains(" / rw") && l.contains(&format!(" - {} ", driver.name()))),
        "{mounts}"
    );
    let left = arena
        .attack("ls -d /.old* /oldroot /pivot* /.pivot* /put_old 2>/dev/null")
        .await?;
    ensure!(left.text().is_empty(), "{}", left.story());
    arena.check().await
}

/// Climbing above the root ends at the root.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e04_climb_above_the_root() -> Result<()> {
    let arena = Arena::new().await?;
    let up = "../".repeat(40);
    let ran = arena
        .attack(&format!(
            "cd /; stat -c %d:%i / /.. /{up}; ls {up}; ls -d /{up}run/lodge-tests"
        ))
        .await?;
    let text = ran.text();
    let inodes: Vec<&str> = text.lines().take(3).collect();
    ensure!(
        inodes.len() == 3 && inodes.iter().all(|i| *i == inodes[0]),
        "{inodes:?}"
    );
    ensure!(
        ran.code() != 0,
        "the host's run directory is visible: {}",
        ran.story()
    );
    arena.check().await
}

/// Mounting, binding and remounting, with the old calls and the new: refused.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e05_mount_anything() -> Result<()> {
    let arena = Arena::new().await?;
    let body = "
say('tmpfs', 'mount', b'x', b'/mnt', b'tmpfs', 0, None)
say('bind', 'mount', b'/proc', b'/mnt', None, 4096, None)
say('remount', 'mount', None, b'/sys', None, 32, None)
say('proc', 'mount', b'proc', b'/mnt', b'proc', 0, None)
say('unshare', 'unshare', CLONE_NEWNS)
say('fsopen', 'fsopen', b'tmpfs', 0)
say('fspick', 'fspick', -100, b'/', 0)
say('open_tree', 'open_tree', -100, b'/proc', 1)
say('move_mount', 'move_mount', -100, b'/proc', -100, b'/mnt', 0)
say('mount_setattr', 'mount_setattr', -100, b'/', 0, None, 0)
say('pivot_root', 'pivot_root', b'/mnt', b'/mnt')
";
    let ran = arena.attack_python(&program(body)).await?;
    let labels = [
        "tmpfs",
        "bind",
        "remount",
        "proc",
        "unshare",
        "fsopen",
        "fspick",
        "open_tree",
        "move_mount",
        "mount_setattr",
        "pivot_root",
    ];
    prober::expect(&ran, &labels.map(|l| (l, "EPERM")))?;
    let mounts = arena
        .attack("grep -c ' /mnt ' /proc/self/mountinfo")
        .await?;
    ensure!(mounts.text() == "0\n", "{}", mounts.story());
    arena.check().await
}

/// Taking masks away: refused, and what they hide stays hidden.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e06_unmount_the_masks() -> Result<()> {
    let arena = Arena::new().await?;
    let body = "
for path in ['/proc/kcore', '/proc', '/proc/sys', '/dev/null', '/sys', '/dev', '/']:
    for flags in [0, 2]:
        say('%s %d' % (path, flags), 'umount2', path.encode(), flags)
";
    let ran = arena.attack_python(&program(body)).await?;
    let answers = prober::answers(&ran)?;
    ensure!(
        answers.len() == 14 && answers.values().all(|a| a == "EPERM"),
        "{answers:?}"
    );
    let masked = arena
        .attack("head -c 4 /proc/kcore 2>/dev/null | wc -c; echo 1 > /proc/sys/vm/swappiness")
        .await?;
    ensure!(
        masked.text() == "0\n" && masked.code() != 0,
        "{}",
        masked.story()
    );
    arena.check().await
}

/// A nested user namespace by every door: refused, and where the kernel is asked behind the filter's back, the
/// sandbox's own quota of user namespaces is zero.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e07_nested_user_namespace() -> Result<()> {
    let arena = Arena::new().await?;
    let body = "
say('unshare', 'unshare', CLONE_NEWUSER)
say('clone', 'clone', CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0)
say('clone3', 'clone3', ctypes.create_string_buffer(struct.pack('<QQQQQ', CLONE_NEWUSER, 0, 0, 0, SIGCHLD) + bytes(48)), 88)
fd = os.open('/proc/self/ns/user', os.O_RDONLY)
say('setns', 'setns', fd, CLONE_NEWUSER)
print('quota: ' + open('/proc/sys/user/max_user_namespaces').read().strip())
";
    let ran = arena.attack_python(&program(body)).await?;
    prober::expect(
        &ran,
        &[
            ("unshare", "EPERM"),
            ("clone", "EPERM"),
            ("clone3", "ENOSYS"),
            ("setns", "EPERM"),
            ("quota", "0"),
        ],
    )?;
    arena.check().await
}

/// Writing to the program of PID 1 while it runs, and running what `/proc/self/exe` names at the moment of exec: the
/// daemon's binary stays as it is.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e10_overwrite_the_init_binary() -> Result<()> {
    let arena = Arena::new().await?;
    let binary = lodge_tests::binary::path("lodged")?;
    let before = Sha256::digest(std::fs::read(&binary)?);
    let body = "
seen = set()
for i in range(300):
    for path in ['/proc/1/exe', '/proc/self/exe'] + ['/proc/%d/exe' % p for p in range(2, 12)]:
        try:
            fd = os.open(path, os.O_WRONLY)
            print('opened: ' + os.readlink('/proc/self/fd/%d' % fd)); os.close(fd)
        except OSError as e: seen.add((path, e.errno))
print('init: ' + ' '.join(sorted({errno.errorcode[e] for p, e in seen if p == '/proc/1/exe'})))
";
    let ran = arena.attack_python(&program(body)).await?;
    let answers = prober::answers(&ran)?;
    ensure!(
        answers
            .get("init")
            .is_some_and(|a| a == "EACCES" || a == "EPERM"),
        "{answers:?}"
    );
    ensure!(!answers.contains_key("opened"), "{answers:?}");
    arena
        .attack("printf '#!/proc/self/exe\\n' > /root/s; chmod +x /root/s")
        .await?
        .exited(0)?;
    for program in ["/proc/self/exe", "/root/s", "/proc/1/exe"] {
        let ran = arena.unseen(
            arena
                .attacker
                .argv(&[program])
                .root()
                .timeout(Duration::from_secs(3))
                .await?,
        )?;
        ensure!(ran.code() == 126, "{program} ran: {}", ran.story());
    }
    // The same by a name that every later run uses.
    arena
        .attack("ln -sfn /proc/self/exe /usr/bin/bash")
        .await?
        .exited(0)?;
    let ran = arena.attack("true").await?;
    ensure!(
        ran.code() == 126,
        "the host's program ran as bash: {}",
        ran.story()
    );
    ensure!(
        Sha256::digest(std::fs::read(&binary)?) == before,
        "the daemon's binary changed"
    );
    arena.check().await
}

/// A fresh command has its three streams and nothing else, and no descriptor anywhere names a path of the host.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e13_leaked_descriptors() -> Result<()> {
    let arena = Arena::new().await?;
    let fresh = "import os\nfor f in sorted(os.listdir('/proc/self/fd'), key=int):\n\
        \ttry: print(f, os.readlink('/proc/self/fd/' + f))\n\texcept OSError: pass";
    let ran = arena.attack_python(fresh).await?.ok()?;
    let lines: Vec<&str> = ran.lines().collect();
    ensure!(lines.len() == 3, "open descriptors: {lines:?}");
    ensure!(
        lines[0] == "0 /dev/null"
            && lines[1].starts_with("1 pipe:")
            && lines[2].starts_with("2 pipe:"),
        "{ran}"
    );
    let all = arena
        .attack("for f in /proc/[0-9]*/fd/*; do readlink $f; done; true")
        .await?
        .text();
    for line in all.lines() {
        let own = ["/dev/null", "pipe:", "/proc/"]
            .iter()
            .any(|known| line.starts_with(known));
        ensure!(own, "a descriptor leads to {line}");
    }
    arena.check().await
}

/// A working directory through a descriptor or through PID 1: refused, or a directory inside, from which no way leads
/// out.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e14_working_directory_through_a_descriptor() -> Result<()> {
    let arena = Arena::new().await?;
    let mut cwds: Vec<String> = (3..=64).map(|n| format!("/proc/self/fd/{n}")).collect();
    cwds.extend(["/proc/1/cwd", "/proc/1/root", "/proc/self/root/../.."].map(String::from));
    for cwd in cwds {
        let look = "pwd -P; ls -a . .. ../../../..; cat ../../../../run/lodge-tests/*/CANARY_HOST";
        match arena.attacker.run(look).root().cwd(&cwd).send().await {
            Err(status) => ensure!(
                matches!(
                    status.code(),
                    Code::InvalidArgument | Code::FailedPrecondition
                ),
                "{cwd}: {status:?}"
            ),
            Ok(ran) => {
                let ran = arena.unseen(ran)?;
                let inside = ran.text().is_empty() || ran.text().starts_with('/');
                ensure!(
                    inside && !ran.text().contains("unreachable"),
                    "{cwd}: {}",
                    ran.story()
                );
                ensure!(
                    !ran.text().contains("lodge-tests"),
                    "{cwd}: {}",
                    ran.story()
                );
            }
        }
    }
    arena.check().await
}

/// PID 1 is opaque to root: no program, environment, descriptor or memory of it can be read, and it cannot be traced.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e15_look_into_pid_1() -> Result<()> {
    let arena = Arena::new().await?;
    let body = "
def attempt(label, f):
    try: f(); print(label + ': OK')
    except OSError as e: print(label + ': ' + errno.errorcode[e.errno])
attempt('exe', lambda: os.readlink('/proc/1/exe'))
attempt('environ', lambda: open('/proc/1/environ', 'rb').read())
attempt('fd', lambda: os.listdir('/proc/1/fd'))
attempt('mem', lambda: open('/proc/1/mem', 'rb'))
attempt('maps', lambda: open('/proc/1/maps').read())
attempt('cwd', lambda: os.listdir('/proc/1/cwd'))
attempt('root', lambda: os.listdir('/proc/1/root'))
attempt('stack', lambda: open('/proc/1/stack').read())
attempt('ns', lambda: os.readlink('/proc/1/ns/user'))
say('seize', 'ptrace', 0x4206, 1, 0, 0)
say('attach', 'ptrace', 16, 1, 0, 0)
buf = ctypes.create_string_buffer(16)
here = ctypes.create_string_buffer(struct.pack('<QQ', ctypes.addressof(buf), 16))
there = ctypes.create_string_buffer(struct.pack('<QQ', 0x400000, 16))
say('vm', 'process_vm_readv', 1, here, 1, there, 1, 0)
";
    let ran = arena.attack_python(&program(body)).await?;
    let labels = [
        "exe", "environ", "fd", "mem", "maps", "cwd", "root", "stack", "ns", "seize", "attach",
        "vm",
    ];
    prober::expect(&ran, &labels.map(|l| (l, "EPERM|EACCES")))?;
    arena.check().await
}

/// Capabilities that no process of a sandbox may ever have: their numbers in `linux/capability.h`.
const NEVER: &[(u32, &str)] = &[
    (2, "DAC_READ_SEARCH"),
    (9, "LINUX_IMMUTABLE"),
    (12, "NET_ADMIN"),
    (13, "NET_RAW"),
    (16, "SYS_MODULE"),
    (17, "SYS_RAWIO"),
    (21, "SYS_ADMIN"),
    (22, "SYS_BOOT"),
    (24, "SYS_RESOURCE"),
    (25, "SYS_TIME"),
    (27, "MKNOD"),
    (34, "SYSLOG"),
    (38, "PERFMON"),
    (39, "BPF"),
    (40, "CHECKPOINT_RESTORE"),
];

/// `su`, a setuid copy of the shell, and a copy with all file capabilities give no more than the bounding set, which
/// never changes; with no_new_privs they give nothing at all.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e16_capabilities_after_setuid() -> Result<()> {
    let arena = Arena::new().await?;
    let caps = "grep -E '^Cap(Bnd|Eff|Prm|Amb|Inh)' /proc/self/status | tr -d '\\t' | tr '\\n' ' '";
    let root = arena.attack(caps).await?.ok()?;
    let set = |text: &str, name: &str| -> Result<u64> {
        let at = text
            .split_whitespace()
            .find_map(|w| w.strip_prefix(name)?.strip_prefix(':'));
        Ok(u64::from_str_radix(
            at.with_context(|| format!("{name} in {text}"))?,
            16,
        )?)
    };
    let bounding = set(&root, "CapBnd")?;
    for (number, name) in NEVER {
        ensure!(
            bounding & (1 << number) == 0,
            "the bounding set holds {name}: {root}"
        );
    }
    ensure!(
        set(&root, "CapAmb")? == 0 && set(&root, "CapInh")? == 0,
        "{root}"
    );
    let prepare = "cp /bin/cat /usr/local/bin/setuid-cat; chmod 4755 /usr/local/bin/setuid-cat
        cp /bin/cat /usr/local/bin/caps-cat
        python3 -c 'import os, struct; os.setxattr(\"/usr/local/bin/caps-cat\", \"security.capability\",
            struct.pack(\"<IIIII\", 0x02000001, 0xffffffff, 0, 0xffffffff, 0))'";
    arena.attack(prepare).await?;
    for gain in ["sudo cat", "setuid-cat", "caps-cat", "sudo setuid-cat"] {
        let ran = arena
            .attacker
            .run(format!("{gain} /proc/self/status"))
            .await?;
        if !ran.text().contains("CapBnd") {
            // A file whose capabilities exceed the bounding set does not execute at all.
            ensure!(ran.code() != 0, "{gain}: {}", ran.story());
            continue;
        }
        let text = ran.text().replace(":\t", ":");
        ensure!(set(&text, "CapBnd")? == bounding, "{gain}: {text}");
        ensure!(set(&text, "CapEff")? & !bounding == 0, "{gain}: {text}");
    }
    let sudo = arena.attacker.run("sudo id -u").await?;
    ensure!(sudo.ok()? == "0", "sudo works inside");
    let without = "import ctypes, os\nctypes.CDLL(None).prctl(38, 1, 0, 0, 0)\n\
        os.execv('/usr/local/bin/setuid-cat', ['c', '/proc/self/status'])";
    let ran = arena
        .attacker
        .python(without)
        .await?
        .ok()?
        .replace(":\t", ":");
    ensure!(
        set(&ran, "CapEff")? == 0 && ran.contains("Uid:1000\t1000\t1000"),
        "{ran}"
    );
    arena.check().await
}

/// Loading code into the kernel, and the interfaces with the longest record of holes: each answers as the table of
/// the filter says.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e22_load_kernel_code() -> Result<()> {
    let arena = Arena::new().await?;
    let names = [
        "init_module",
        "finit_module",
        "delete_module",
        "bpf",
        "kexec_load",
        "perf_event_open",
        "userfaultfd",
        "io_uring_setup",
        "io_uring_enter",
        "io_uring_register",
        "keyctl",
        "add_key",
        "request_key",
        "open_by_handle_at",
        "swapon",
        "reboot",
    ];
    let list = names.map(|n| format!("'{n}'")).join(", ");
    let body = format!("for n in [{list}]: say(n, n, 0, 0, 0, 0, 0, 0)");
    let ran = arena.attack_python(&program(&body)).await?;
    let wanted = |name: &str| match name {
        n if n.starts_with("io_uring") || n.contains("key") => "ENOSYS",
        "bpf" | "perf_event_open" | "userfaultfd" => "EPERM|ENOSYS",
        _ => "EPERM",
    };
    prober::expect(&ran, &names.map(|n| (n, wanted(n))))?;
    arena.check().await
}

/// Taking the filter off, by ptrace, by prctl, and by executing setuid programs: it stays, and there are never fewer.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e24_remove_the_filter() -> Result<()> {
    let arena = Arena::new().await?;
    let body = "
PTRACE_TRACEME, PTRACE_SETOPTIONS, PTRACE_CONT, SUSPEND_SECCOMP = 0, 0x4200, 7, 1 << 21
child = os.fork()
if child == 0:
    sc('ptrace', PTRACE_TRACEME, 0, 0, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(0)
os.waitpid(child, 0)
say('suspend', 'ptrace', PTRACE_SETOPTIONS, child, 0, SUSPEND_SECCOMP)
os.kill(child, signal.SIGKILL)
def field(name):
    return [l.split()[1] for l in open('/proc/self/status') if l.startswith(name)][0]
before = int(field('Seccomp_filters'))
libc.prctl(22, 0, 0, 0, 0)
print('mode: ' + field('Seccomp:'))
print('fewer: ' + str(int(field('Seccomp_filters')) < before or before < 1))
say('still', 'unshare', CLONE_NEWUSER)
";
    let ran = arena.attack_python(&program(body)).await?;
    prober::expect(
        &ran,
        &[
            ("suspend", "EPERM"),
            ("mode", "2"),
            ("fewer", "False"),
            ("still", "EPERM"),
        ],
    )?;
    let counts = "grep Seccomp /proc/self/status | tr -d '\\t' | tr '\\n' ' '";
    let plain = arena.attacker.run(counts).await?.ok()?;
    let through_sudo = arena
        .attacker
        .run(format!("sudo sh -c \"{counts}\""))
        .await?
        .ok()?;
    ensure!(
        plain.starts_with("Seccomp:2 ") && plain == through_sudo,
        "{plain} then {through_sudo}"
    );
    arena.check().await
}

/// Sockets of every family and type: only local, Internet and route-netlink ones can be had.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e26_exotic_socket_families() -> Result<()> {
    let arena = Arena::new().await?;
    let body = "
import socket
for family in range(0, 47):
    for kind in range(1, 7):
        for call in ('socket', 'socketpair'):
            if call == 'socket': r, e = sc('socket', family, kind, 0)
            else:
                try: a, b = socket.socketpair(family, kind, 0); r = 0; a.close(); b.close()
                except OSError: r = -1
            if r >= 0:
                print('%s %d %d: OK' % (call, family, kind))
                if call == 'socket': os.close(r)
# UNIX and INET are not merely refused with the rest.
for label, family in (('unix', 1), ('inet', 2), ('inet6', 10)): say(label, 'socket', family, 1, 0)
for proto in (9, 6, 12, 15, 16): say('netlink %d' % proto, 'socket', 16, 3, proto)
";
    let ran = arena.attack_python(&program(body)).await?;
    for label in prober::answers(&ran)?.keys() {
        let mut words = label.split(' ');
        match (
            words.next(),
            words.next().and_then(|w| w.parse::<u32>().ok()),
        ) {
            (Some("socket"), Some(family)) => ensure!(matches!(family, 1 | 2 | 10 | 16), "{label}"),
            (Some("socketpair"), Some(family)) => ensure!(family == 1, "{label}"),
            _ => {}
        }
    }
    prober::expect(&ran, &[("unix", "OK"), ("inet", "OK"), ("inet6", "OK")])?;
    let refused = "EAFNOSUPPORT|EPROTONOSUPPORT|EPERM|EACCES";
    prober::expect(
        &ran,
        &[
            ("netlink 9", refused),
            ("netlink 6", refused),
            ("netlink 12", refused),
            ("netlink 15", refused),
            ("netlink 16", refused),
        ],
    )?;
    arena.check().await
}

/// Signals to everything, and to every pid that the host may use: nothing outside is reached.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e35_signal_host_and_neighbour() -> Result<()> {
    let arena = Arena::new().await?;
    let daemon = arena.daemon.pid()?;
    let body = "
own = {int(n) for n in os.listdir('/proc') if n.isdigit()}
reached = []
for pid in range(1, 32769):
    try: os.kill(pid, 0)
    except ProcessLookupError: continue
    except PermissionError: pass
    reached.append(pid)
print('outside: ' + str(len([p for p in reached if not os.path.exists('/proc/%d' % p) and p not in own])))
print('count: ' + ('few' if len(reached) < 10 else str(reached)))
";
    let ran = arena.attack_python(&program(body)).await?;
    prober::expect(&ran, &[("outside", "0"), ("count", "few")])?;
    arena
        .attack("pkill -9 -f lodged; pkill -9 -f sleep; kill -9 -1")
        .await?;
    ensure!(
        arena.daemon.pid()? == daemon && lodge_tests::host::open_files(daemon).is_ok(),
        "the daemon died"
    );
    arena.attack("true").await?.exited(0)?;
    arena.check().await
}
