//! Attacks on what the kernel shares out: its settings and logs, devices, handles, cgroups, namespaces and layers. Each runs as
//! root inside, and the host is looked at from outside after it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use lodge_tests::arena::Arena;
use lodge_tests::prober::{self, program};
use lodge_tests::{cgroup, host};

/// Writes to every file of the kernel's settings, of whatever mode, and says which one took it.
const WRITE_SETTINGS: &str = r"
tried, refused = 0, {}
for top, dirs, files in os.walk('/proc/sys'):
    for name in files:
        path = os.path.join(top, name)
        tried += 1
        for flags in (os.O_WRONLY, os.O_RDWR):
            try:
                fd = os.open(path, flags)
                os.write(fd, b'1\n')
                print('written: ' + path, flush=True)
            except OSError as e:
                refused[errno.errorcode[e.errno]] = refused.get(errno.errorcode[e.errno], 0) + 1
print('tried: %d' % tried)
print('refused: ' + ' '.join(sorted(refused)))
";

/// Every setting of the kernel that is listed inside: no write gets through, whether by mode, by mount or by namespace, and all
/// that the host has is as before.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e08_write_settings_of_the_host() -> Result<()> {
    let arena = Arena::new().await?;
    let before = settings(Path::new("/proc/sys"));
    ensure!(before.len() > 300, "only {} settings", before.len());
    let ran = arena.attack_python(&program(WRITE_SETTINGS)).await?;
    let answers = prober::answers(&ran)?;
    let tried: usize = answers.get("tried").context("a count")?.parse()?;
    ensure!(tried > 300, "only {tried} were tried");
    ensure!(!answers.contains_key("written"), "{}", ran.text());
    let refused = answers.get("refused").context("the reasons")?;
    ensure!(
        refused
            .split(' ')
            .all(|e| ["EROFS", "EACCES", "EPERM"].contains(&e)),
        "{refused}"
    );
    let tools = "command -v sysctl >/dev/null && sysctl -w kernel.core_pattern='|/x' && echo set
        echo '|/x' > /proc/sys/kernel/core_pattern && echo set
        echo /x > /proc/sys/kernel/modprobe && echo set; true";
    ensure!(arena.attack(tools).await?.text().is_empty());
    let after = settings(Path::new("/proc/sys"));
    for (path, value) in &before {
        ensure!(
            moves(path) || after.get(path) == Some(value),
            "{} was {value:?}",
            path.display()
        );
    }
    arena.check().await
}

/// All settings of the host below `top`, by path. What cannot be read is left out.
fn settings(top: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(top).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(settings(&path)),
            Ok(kind) if kind.is_file() => {
                if let Ok(value) = fs::read_to_string(&path) {
                    found.insert(path, value);
                }
            }
            _ => {}
        }
    }
    found
}

/// Settings that tell of the host's load rather than set something.
fn moves(path: &Path) -> bool {
    const MOVING: &[&str] = &[
        "random/",
        "-nr",
        "-state",
        "ns_last_pid",
        "nf_conntrack_count",
        "pty/nr",
        "sched_domain",
        "/cdrom/",
        "nf_log",
        "neigh/",
        "conf/",
        "route/",
        "quota/",
        "perf_event_max_sample_rate",
        "perf_cpu_time",
    ];
    let path = path.to_string_lossy();
    MOVING.iter().any(|word| path.contains(word))
}

/// The kernel's magic keys, its memory, its log and its symbols: refused, not there, or empty, and no address is told.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e09_keys_memory_and_log_of_the_kernel() -> Result<()> {
    let arena = Arena::new().await?;
    let body = r"
def attempt(label, path, flags, data=None):
    try:
        fd = os.open(path, flags)
        if data is None: print(label + ': %d bytes' % len(os.read(fd, 64)))
        else: os.write(fd, data); print(label + ': written')
    except OSError as e: print(label + ': ' + errno.errorcode[e.errno])
attempt('sysrq', '/proc/sysrq-trigger', os.O_WRONLY, b'h')
attempt('sysrq setting', '/proc/sys/kernel/sysrq', os.O_WRONLY, b'1')
for path in ['/proc/kcore', '/dev/kmsg', '/dev/mem', '/dev/kmem', '/dev/port', '/proc/kmsg', '/dev/nvram', '/dev/cpu/0/msr']:
    attempt(path, path, os.O_RDONLY | os.O_NONBLOCK)
buf = ctypes.create_string_buffer(4096)
for action in (2, 3, 4, 5, 9, 10):
    ctypes.set_errno(0)
    r = libc.klogctl(action, buf, 4096)
    print('log %d: ' % action + ('OK' if r >= 0 else errno.errorcode[ctypes.get_errno()]))
try: lines = open('/proc/kallsyms').read(1 << 16).splitlines()
except OSError: lines = []
print('addresses: %d' % len([l for l in lines if int(l.split()[0], 16)]))
";
    let ran = arena.attack_python(&program(body)).await?;
    let nothing = "EPERM|EACCES|EROFS|ENOENT|EIO|ENXIO";
    let empty = format!("{nothing}|0 bytes");
    let mut wanted = vec![
        ("sysrq".to_owned(), nothing),
        ("sysrq setting".to_owned(), nothing),
        ("addresses".to_owned(), "0"),
    ];
    wanted.extend(
        [
            "/proc/kcore",
            "/dev/kmsg",
            "/dev/mem",
            "/dev/kmem",
            "/dev/port",
            "/proc/kmsg",
            "/dev/nvram",
            "/dev/cpu/0/msr",
        ]
        .map(|path| (path.to_owned(), empty.as_str())),
    );
    wanted.extend([2, 3, 4, 5, 9, 10].map(|n| (format!("log {n}"), "EPERM|ENOSYS")));
    let wanted: Vec<_> = wanted.iter().map(|(l, w)| (l.as_str(), *w)).collect();
    prober::expect(&ran, &wanted)?;
    let dmesg = arena.attack("dmesg 2>/dev/null | head -c 100").await?;
    ensure!(dmesg.text().is_empty(), "{}", dmesg.story());
    arena.check().await
}

/// Root of the user namespace is not root over what belongs to the host: no owner of it is changed, and no node of a device is
/// made that could be opened.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e17_root_over_objects_of_the_host() -> Result<()> {
    let arena = Arena::new().await?;
    let body = r"
def attempt(label, f):
    try: f(); print(label + ': OK')
    except OSError as e: print(label + ': ' + errno.errorcode[e.errno])
attempt('chown root', lambda: os.chown('/proc/1/root', 0, 0))
attempt('chown exe', lambda: os.chown('/proc/1/exe', 0, 0))
attempt('chown proc', lambda: os.chown('/proc/sys/kernel/core_pattern', 0, 0))
attempt('chmod proc', lambda: os.chmod('/proc/sysrq-trigger', 0o666))
attempt('chown sys', lambda: os.chown('/sys/kernel', 0, 0))
attempt('chown null', lambda: os.chown('/dev/null', 0, 0))
attempt('chmod null', lambda: os.chmod('/dev/null', 0o777))
attempt('foreign owner', lambda: (open('/tmp/o', 'w').close(), os.chown('/tmp/o', 3000000, 0)))
for kind, name in [(0o060000, 'block'), (0o020000, 'char')]:
    for place in ['/tmp', '/dev', '/dev/shm']:
        for major, minor in [(254, 0), (8, 0), (7, 0), (1, 1), (1, 2), (10, 229), (10, 237), (5, 1)]:
            at = '%s/n-%s-%d-%d' % (place, name, major, minor)
            attempt('%s %s %d:%d' % (place, name, major, minor), lambda: os.mknod(at, kind | 0o600, os.makedev(major, minor)))
# What an overlay takes for a deleted file.
attempt('whiteout', lambda: os.mknod('/tmp/w', 0o020000, os.makedev(0, 0)))
attempt('open whiteout', lambda: os.open('/tmp/w', os.O_RDWR))
";
    let ran = arena.attack_python(&program(body)).await?;
    let answers = prober::answers(&ran)?;
    for (label, answer) in &answers {
        let refused = ["EPERM", "EACCES", "EROFS"].contains(&answer.as_str());
        let wanted = match label.as_str() {
            // A kernel without magic keys has no such file.
            "chmod proc" => refused || answer == "ENOENT",
            // An id that the namespace has no number for.
            "foreign owner" => answer == "EINVAL",
            // A node that has no device behind it is no way to one.
            "whiteout" => refused || answer == "OK",
            "open whiteout" => refused || answer == "ENXIO" || answer == "ENOENT",
            _ => refused,
        };
        ensure!(wanted, "{label} gave {answer}");
    }
    ensure!(answers.len() == 8 + 48 + 2, "{answers:?}");
    arena.check().await
}

/// A file by its handle instead of its name, which leads past every root: the calls to make use of one are refused, for handles
/// of files inside and for a guessed one of the file system's top.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e19_open_by_handle() -> Result<()> {
    let arena = Arena::new().await?;
    let body = r"
NUMBER['name_to_handle_at'] = 303 if platform.machine() == 'x86_64' else 264
def handle(kind, data): return ctypes.create_string_buffer(struct.pack('<Ii', len(data), kind) + data + bytes(128))
mount = ctypes.create_string_buffer(8)
own = ctypes.create_string_buffer(struct.pack('<Ii', 128, 0) + bytes(128))
r, e = sc('name_to_handle_at', -100, b'/etc/hostname', own, mount, 0)
print('name: ' + e)
for place in ['/', '/etc/hostname', '/dev/shm', '/proc', '/sys', '/tmp']:
    fd = os.open(place, os.O_RDONLY)
    if r == 0: say('own %s' % place, 'open_by_handle_at', fd, own, os.O_RDONLY)
    for inode in (1, 2, 128, 256):
        for kind, data in [(1, struct.pack('<II', inode, 0)), (0x4d, struct.pack('<QQI', inode, 5, 0)), (0x81, struct.pack('<QI', inode, 0))]:
            say('%s %d %x' % (place, inode, kind), 'open_by_handle_at', fd, handle(kind, data), os.O_RDONLY)
for flags in (os.O_RDWR, 0x200000): say('cwd %x' % flags, 'open_by_handle_at', -100, handle(1, struct.pack('<II', 2, 0)), flags)
";
    let ran = arena.attack_python(&program(body)).await?;
    let mut answers = prober::answers(&ran)?;
    let named = answers.remove("name").context("of the name")?;
    ensure!(
        ["OK", "EPERM", "ENOSYS", "EOPNOTSUPP"].contains(&named.as_str()),
        "{named}"
    );
    ensure!(answers.len() >= 6 * 12 + 2, "{answers:?}");
    for (label, answer) in &answers {
        ensure!(answer == "EPERM", "{label} gave {answer}");
    }
    arena.check().await
}

/// The way out by a group's `release_agent`: there is no hierarchy inside to write to, and none can be mounted.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e20_mount_a_hierarchy_of_cgroups() -> Result<()> {
    let arena = Arena::new().await?;
    let shown = arena
        .attack("awk '$3 ~ /^cgroup/' /proc/self/mounts; find / -xdev -name release_agent 2>/dev/null; find /sys -name 'cgroup.*' 2>/dev/null; true")
        .await?;
    ensure!(shown.text().is_empty(), "{}", shown.story());
    let body = r"
os.makedirs('/tmp/m', exist_ok=True)
for options in ['memory', 'rdma', 'perf_event', 'cpuset', 'pids', 'devices', 'freezer', 'misc', 'none,name=x', 'name=systemd', 'all', 'none']:
    for place in (b'/tmp/m', b'/sys/fs/cgroup'):
        say('%s %s' % (options, place.decode()), 'mount', b'x', place, b'cgroup', 0, options.encode())
say('v2', 'mount', b'x', b'/tmp/m', b'cgroup2', 0, None)
say('v2 by descriptor', 'fsopen', b'cgroup2', 0)
say('v1 by descriptor', 'fsopen', b'cgroup', 0)
say('group namespace', 'unshare', 0x02000000)
try: writable = [os.path.join(t, f) for t, d, fs in os.walk('/sys') for f in fs if os.access(os.path.join(t, f), os.W_OK)]
except OSError: writable = []
print('writable below sys: ' + (' '.join(writable[:5]) or 'none'))
";
    let ran = arena.attack_python(&program(body)).await?;
    let mut answers = prober::answers(&ran)?;
    let writable = answers.remove("writable below sys");
    ensure!(writable.as_deref() == Some("none"), "{writable:?}");
    ensure!(answers.len() == 24 + 4, "{answers:?}");
    for (label, answer) in &answers {
        ensure!(answer == "EPERM", "{label} gave {answer}");
    }
    arena.check().await
}

/// A process that would leave its group for one without limits: there is no file to write itself into, by whatever name, and from
/// outside it is seen in the leaf of its run afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e21_leave_the_cgroup() -> Result<()> {
    let arena = Arena::new().await?;
    let script = "for f in /sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/*/cgroup.procs /sys/fs/cgroup/*/tasks \
        /sys/fs/cgroup/../cgroup/cgroup.procs /proc/1/root/sys/fs/cgroup/cgroup.procs /proc/self/cgroup /proc/1/cgroup; do
            (echo $$ > $f) 2>/dev/null && echo \"written: $f\"
        done
        cat /proc/self/cgroup; echo done; exec sleep 1000";
    let mut live = arena.attacker.run(script).root().start().await?;
    live.wait_for("done").await?;
    let text = String::from_utf8_lossy(&live.stdout).into_owned();
    ensure!(!text.contains("written: "), "{text}");
    // What it is told of its group is seen from the sandbox's own group, and has no name of a group of the host.
    ensure!(
        !text.contains(&arena.daemon.cgroup()) && !text.contains(arena.attacker.id()),
        "{text}"
    );
    let leaves = cgroup::containing(&arena.daemon.cgroup(), &live.run_id)?;
    let listed =
        |group: &PathBuf| fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let pids: Vec<i32> = leaves
        .iter()
        .flat_map(|g| {
            listed(g)
                .lines()
                .filter_map(|l| l.parse().ok())
                .collect::<Vec<i32>>()
        })
        .collect();
    ensure!(!pids.is_empty(), "the leaf of the run is empty: {leaves:?}");
    for pid in pids {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        let limits = ["0::", "memory", "pids", "cpu", "devices"];
        for line in groups.lines() {
            let held = line.split(':').nth(1).unwrap_or_default();
            let ours = line.starts_with("0::") || held.split(',').any(|c| limits.contains(&c));
            ensure!(
                !ours || line.contains(arena.attacker.id()),
                "process {pid} is in {line}"
            );
        }
    }
    arena.attacker.kill(&live.run_id).await?;
    arena.check().await
}

/// A neighbour's namespaces: by the numbers that its processes have on the host, in /proc and by descriptor, by handles of every
/// kind of namespace. Nothing is found, and nothing is entered.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e37_enter_the_neighbours_namespaces() -> Result<()> {
    let arena = Arena::new().await?;
    let members = cgroup::members(&arena.daemon.cgroup())?;
    let attackers = arena.attacker.uid_base(&arena.daemon.cgroup())?;
    let own = host::processes_of_uids(attackers, lodge_tests::slot::UID_BLOCK)?;
    let own: Vec<i32> = own.into_iter().map(|(pid, _)| pid).collect();
    let others: Vec<String> = members
        .into_iter()
        .filter(|pid| !own.contains(pid))
        .chain([arena.daemon.pid()?])
        .map(|pid| pid.to_string())
        .collect();
    ensure!(others.len() >= 3, "the neighbour has PID 1 and a process");
    let body = format!(
        r"
seen = [p for p in ({},) if os.path.exists('/proc/%d' % p) and p > 64]
print('seen: %d' % len(seen))
opened = set()
for p in range(1, 40000):
    r, e = sc('pidfd_open', p, 0)
    if r >= 0:
        opened.add(p)
        for kind in (0, 0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x7e020000):
            r2, e2 = sc('setns', r, kind)
            if r2 >= 0: print('entered: %d' % p)
        os.close(r)
listed = {{int(p) for p in os.listdir('/proc') if p.isdigit()}}
print('foreign: %d' % len(opened - listed))
for name in os.listdir('/proc/self/ns'):
    for p in listed:
        try: fd = os.open('/proc/%d/ns/%s' % (p, name), os.O_RDONLY)
        except OSError: continue
        r, e = sc('setns', fd, 0)
        if r >= 0: print('entered: %s of %d' % (name, p))
        os.close(fd)
print('end: OK')
",
        others.join(", ")
    );
    let ran = arena.attack_python(&program(&body)).await?;
    prober::expect(&ran, &[("seen", "0"), ("foreign", "0"), ("end", "OK")])?;
    ensure!(
        !prober::answers(&ran)?.contains_key("entered"),
        "{}",
        ran.text()
    );
    arena.check().await
}

/// Layers that the attacker would choose: no file system of its own can be mounted, by no driver in user space either; and a setuid
/// file of the image that is copied up keeps ids that mean nothing on the host.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e43_setuid_files_by_copying_up() -> Result<()> {
    let arena = Arena::new().await?;
    let body = r"
os.makedirs('/tmp/u/m', exist_ok=True)
for path in ['/dev/fuse', '/dev/cuse', '/dev/loop-control', '/dev/loop0', '/dev/mapper/control']:
    try: os.open(path, os.O_RDWR); print(path + ': OK')
    except OSError as e: print(path + ': ' + errno.errorcode[e.errno])
for kind, data in [('fuse', b'fd=3,rootmode=40000,user_id=0,group_id=0'), ('fuseblk', b'fd=3'), ('overlay', b'lowerdir=/usr:/tmp'),
        ('overlay up', b'lowerdir=/usr,upperdir=/tmp/u,workdir=/tmp/u'), ('9p', None), ('virtiofs', None), ('ext4', None)]:
    say('mount ' + kind, 'mount', b'x', b'/tmp/u/m', kind.split()[0].encode(), 0, data)
    say('fsopen ' + kind, 'fsopen', kind.split()[0].encode(), 0)
say('bind', 'mount', b'/usr', b'/tmp/u/m', None, 4096, None)
";
    let ran = arena.attack_python(&program(body)).await?;
    let answers = prober::answers(&ran)?;
    ensure!(answers.len() == 5 + 14 + 1, "{answers:?}");
    for (label, answer) in &answers {
        let wanted = if label.starts_with('/') {
            "ENOENT|EPERM|EACCES|ENXIO"
        } else {
            "EPERM"
        };
        ensure!(
            wanted.split('|').any(|w| w == answer),
            "{label} gave {answer}"
        );
    }
    let copy_up = "s=$(find /usr/bin -perm -4000 | head -n 1); touch $s; chmod u+s $s; ln $s /tmp/linked 2>/dev/null
        cp -p /bin/sh /usr/local/bin/own-sh; chmod 6755 /usr/local/bin/own-sh; stat -c '%n %a %u' $s /usr/local/bin/own-sh";
    let made = arena.attack(copy_up).await?.ok()?;
    ensure!(made.contains("own-sh 6755 0"), "{made}");
    // As a user inside it gives root inside, whose id on the host is one of the sandbox's.
    let ran = arena.attacker.run("own-sh -p -c 'id -u; exec sleep 1000'");
    let mut live = ran.start().await?;
    live.wait_for("0\n").await?;
    let base = arena.attacker.uid_base(&arena.daemon.cgroup())?;
    for leaf in cgroup::containing(&arena.daemon.cgroup(), &live.run_id)? {
        for pid in fs::read_to_string(leaf.join("cgroup.procs"))?.lines() {
            let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
            let uids = host::status_field(&status, "Uid").context("ids")?;
            for uid in uids.split_whitespace() {
                let uid: u32 = uid.parse()?;
                ensure!(
                    (base..base + lodge_tests::slot::UID_BLOCK).contains(&uid),
                    "process {pid} has the ids {uids}"
                );
            }
        }
    }
    arena.attacker.kill(&live.run_id).await?;
    arena.check().await
}

/// A user of the host that the attacker has made friends with: nothing of the state directory is listed, read or executed by it, and
/// no mount of a sandbox is on the host at all.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e44_a_user_of_the_host_runs_a_setuid_file() -> Result<()> {
    let arena = Arena::new().await?;
    arena
        .attack("cp /bin/sh /usr/local/bin/gift; chmod 6777 /usr/local/bin/gift; sync")
        .await?
        .exited(0)?;
    let state = arena.daemon.state_dir();
    let home = arena.daemon.slot().home().to_owned();
    let root = arena.attacker.holder_pid(&arena.daemon.cgroup())?;
    let gift = format!("/proc/{root}/root/usr/local/bin/gift");
    let attempts = [
        format!("ls {}", state.display()),
        format!("ls {}/sandboxes", state.display()),
        format!("find {} -type f -perm /6000", state.display()),
        format!(
            "cat {}/sandboxes/{}/record.json",
            state.display(),
            arena.attacker.id()
        ),
        format!("{gift} -c id"),
        format!("ls /proc/{root}/root/"),
        format!("ls /proc/{root}/cwd/"),
        format!("echo > {}/x", home.join("run").display()),
    ];
    for script in attempts {
        let output = as_nobody(&script)?;
        ensure!(!output.status.success(), "`{script}` did it");
        let said = String::from_utf8_lossy(&output.stderr).to_lowercase();
        ensure!(
            said.contains("permission denied") || said.contains("not permitted"),
            "`{script}` failed otherwise: {said}"
        );
        ensure!(output.stdout.is_empty(), "`{script}` tells something");
    }
    let mounts = host::mounts_below(&state)?;
    ensure!(mounts.is_empty(), "mounts on the host: {mounts:?}");
    let inside = fs::read_to_string(format!("/proc/{root}/mountinfo"))?;
    let top = inside.lines().find(|l| l.split(' ').nth(4) == Some("/"));
    let top = top.context("a root")?;
    ensure!(top.contains("nodev"), "devices would work in {top}");
    arena.check().await
}

/// A shell command of a user that has nothing on the host.
fn as_nobody(script: &str) -> Result<std::process::Output> {
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "sh",
        "-c",
        script,
    ]);
    command.current_dir("/").output().context("setpriv")
}
