//! Attacks R07, R10, R12 and R39: a sandbox takes more of the disk, or of memory that looks like one, than it was given. The same
//! on either storage driver.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::arena::Arena;
use lodge_tests::prober::{self, FILL, program};
use lodge_tests::room::Ran;
use lodge_tests::storage;

const MIB: u64 = 1 << 20;
/// The limit of the attacker's disk.
const DISK: u64 = 128 * MIB;
/// The limit of its /dev/shm, and of its memory.
const SHM: u64 = 16 * MIB;
const MEMORY: u64 = 192 * MIB;
/// What the host may lose beyond the limit: the log of a run, records, the driver's bookkeeping.
const BESIDE: u64 = 16 * MIB;
/// The same where all of it is metadata: btrfs writes them anew at every commit before it frees what was there.
const METADATA: u64 = 96 * MIB;
/// Filling takes its time on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

async fn arena() -> Result<Arena> {
    Arena::with_limits(pb::Limits {
        disk_bytes: Some(DISK.cast_signed()),
        shm_bytes: Some(SHM.cast_signed()),
        memory_bytes: Some(MEMORY.cast_signed()),
        ..Default::default()
    })
    .await
}

async fn attack(arena: &Arena, body: &str) -> Result<Ran> {
    let program = program(&format!("{FILL}\n{body}"));
    let attack = arena.attacker.python(&program).root().timeout(PATIENCE);
    arena.unseen(attack.await?)
}

/// What the host lost to everything that the daemon stores.
struct Host(u64);

impl Host {
    fn of(arena: &Arena) -> Result<Self> {
        Ok(Self(storage::taken_of_host(&arena.daemon.state_dir())?))
    }

    fn lost_at_most(&self, arena: &Arena, most: u64) -> Result<()> {
        let lost = Self::of(arena)?.0.saturating_sub(self.0);
        ensure!(lost <= most, "the host lost {lost} bytes, {most} at most");
        Ok(())
    }
}

/// Every file system in memory that is to be seen, also those that hide something: each is read-only or takes no more than its
/// cap, together they take no more than the limits, and whoever takes more memory is killed for it.
#[tokio::test(flavor = "multi_thread")]
async fn attack_r07_file_systems_in_memory() -> Result<()> {
    let arena = arena().await?;
    let body = "
for line in open('/proc/self/mounts'):
    _, place, kind, options = line.split()[:4]
    if kind not in ('tmpfs', 'ramfs', 'devtmpfs'): continue
    name = place if not os.path.isdir(place) else place.rstrip('/') + '/attack-r07'
    if os.path.isdir(place): written, why = fill(name)
    else: written, why = 0, 'FILE'
    print(f'{place}: {written} {why}', flush=True)
";
    let ran = attack(&arena, body).await?;
    let answers = prober::answers(&ran)?;
    ensure!(answers.contains_key("/dev/shm"), "{}", ran.story());
    let mut all = 0;
    for (place, answer) in &answers {
        let (written, why) = answer.split_once(' ').context("two words")?;
        let written: u64 = written.parse()?;
        ensure!(
            matches!(why, "ENOSPC" | "EROFS" | "EACCES" | "EPERM" | "FILE"),
            "{place}: {answer}"
        );
        ensure!(place != "/dev/shm" || written == SHM, "{place}: {answer}");
        all += written;
    }
    ensure!(all < SHM + 4 * MIB, "{answers:?}");
    // A run that ended leaves it in memory that counts; with what is left of the limit another one works.
    arena.attack("true").await?.exited(0)?;
    arena.attack("rm /dev/shm/attack-r07").await?.exited(0)?;
    arena.check().await
}

/// A file that never ends, an allocation of 1 TiB, and a hole of 8 EiB.
#[tokio::test(flavor = "multi_thread")]
async fn attack_r10_disk_fill() -> Result<()> {
    let arena = arena().await?;
    let host = Host::of(&arena)?;
    let body = "
tib = os.open('/tib', os.O_RDWR | os.O_CREAT)
tell('fallocate', lambda: os.posix_fallocate(tib, 0, 1 << 40))
hole = os.open('/hole', os.O_RDWR | os.O_CREAT)
tell('hole', lambda: os.ftruncate(hole, (1 << 63) - 1))
tell('its end', lambda: os.pwrite(hole, b'x', (1 << 62)))
os.unlink('/tib'); os.close(tib)
print('fill: %d %s' % fill('/big'))
";
    let ran = attack(&arena, body).await?;
    prober::expect(
        &ran,
        &[
            ("fallocate", "ENOSPC|EDQUOT|EFBIG"),
            // A hole takes nothing, where the file system has such files.
            ("hole", "OK|EFBIG|EINVAL"),
            ("its end", "OK|EFBIG|EINVAL"),
        ],
    )?;
    let answers = prober::answers(&ran)?;
    let (written, why) = answers["fill"].split_once(' ').context("two words")?;
    ensure!(matches!(why, "ENOSPC" | "EDQUOT"), "{}", ran.story());
    let written: u64 = written.parse()?;
    ensure!(written > DISK / 2 && written <= DISK, "{written} bytes");
    arena
        .attack("dd if=/dev/zero of=/more bs=1M; ! sync /more")
        .await?;
    arena.others_are_fine().await?;
    host.lost_at_most(&arena, DISK + BESIDE)?;
    arena.attack("rm /big /hole /more; true").await?.exited(0)?;
    arena.check().await
}

/// The ioctls of btrfs by number, with arguments as its own tools give them, and then the disk: no subvolume, snapshot or quota
/// group is made or left from inside, so that the limit holds.
#[tokio::test(flavor = "multi_thread")]
async fn attack_r12_subvolumes_from_inside_then_filled() -> Result<()> {
    let arena = arena().await?;
    let host = Host::of(&arena)?;
    let body = "
os.makedirs('/root/place', exist_ok=True)
place, root = os.open('/root/place', os.O_RDONLY), os.open('/', os.O_RDONLY)
def named(fd, name): return ctypes.create_string_buffer(struct.pack('<q', fd) + name, 4096)
say('SUBVOL_CREATE', 'ioctl', place, 0x5000940e, named(0, b'sub'))
say('SUBVOL_CREATE_V2', 'ioctl', place, 0x50009418, ctypes.create_string_buffer(struct.pack('<qQQ', 0, 0, 0) + bytes(32) + b'sub2', 4096))
say('SNAP_CREATE', 'ioctl', place, 0x50009401, named(root, b'snap'))
say('SNAP_CREATE_V2', 'ioctl', place, 0x50009417, ctypes.create_string_buffer(struct.pack('<qQQ', root, 0, 0) + bytes(32) + b'snap2', 4096))
say('SNAP_DESTROY', 'ioctl', place, 0x5000940f, named(0, b'snap'))
say('SNAP_DESTROY_V2', 'ioctl', place, 0x5000943f, named(0, b'snap'))
say('DEFAULT_SUBVOL', 'ioctl', root, 0x40089413, ctypes.create_string_buffer(struct.pack('<Q', 5), 8))
say('SUBVOL_SETFLAGS', 'ioctl', root, 0x4008941a, ctypes.create_string_buffer(struct.pack('<Q', 2), 8))
say('QUOTA_CTL', 'ioctl', root, 0xc0109428, ctypes.create_string_buffer(struct.pack('<QQ', 2, 0), 16))
say('QGROUP_ASSIGN', 'ioctl', root, 0x40189429, ctypes.create_string_buffer(struct.pack('<QQQ', 0, 256, 1 << 48), 24))
say('QGROUP_CREATE', 'ioctl', root, 0x4010942a, ctypes.create_string_buffer(struct.pack('<QQ', 1, (1 << 48) | 77), 16))
say('QGROUP_LIMIT', 'ioctl', root, 0x8030942b, ctypes.create_string_buffer(48))
say('RESIZE', 'ioctl', root, 0x50009403, named(0, b'max'))
say('SYNC', 'ioctl', root, 0x9408, ctypes.create_string_buffer(8))
say('TREE_SEARCH', 'ioctl', root, 0xd0009411, ctypes.create_string_buffer(4096))
say('INO_LOOKUP', 'ioctl', root, 0xd0009412, ctypes.create_string_buffer(4096))
say('DEV_INFO', 'ioctl', root, 0xd000941e, ctypes.create_string_buffer(4096))
say('FS_INFO', 'ioctl', root, 0x8400941f, ctypes.create_string_buffer(1024))
print('made: ' + ' '.join(sorted(os.listdir('/root/place'))))
total, n = 0, 0
for place in ['/root/place/sub', '/root/place/sub2', '/root/place/snap/root', '/root/place']:
    if os.path.isdir(place): total += fill(place + '/big')[0]
print('total: %d' % total)
";
    let ran = attack(&arena, body).await?;
    let answers = prober::answers(&ran)?;
    let denied: Vec<(&str, &str)> = answers
        .keys()
        .filter(|label| {
            label
                .chars()
                .all(|c| c.is_ascii_uppercase() || "_V2".contains(c))
        })
        .map(|label| (label.as_str(), "EPERM"))
        .collect();
    ensure!(denied.len() == 18, "{denied:?}");
    prober::expect(&ran, &denied)?;
    ensure!(answers["made"].is_empty(), "{:?} was made", answers["made"]);
    let total: u64 = answers["total"].parse()?;
    ensure!(total > DISK / 2 && total <= DISK, "{total} bytes");
    host.lost_at_most(&arena, DISK + BESIDE)?;
    arena.check().await
}

/// Attributes of files, as large and as many as they may be: they count, and end at the limit.
#[tokio::test(flavor = "multi_thread")]
async fn attack_r39_huge_attributes() -> Result<()> {
    let arena = arena().await?;
    let host = Host::of(&arena)?;
    let body = "
os.mkdir('/attributes')
sizes, stored, refused, files, last = [65536, 16000, 3900, 1000], 0, 0, 0, ''
for n in range(100000):
    try: fd = os.open(f'/attributes/{n}', os.O_WRONLY | os.O_CREAT)
    except OSError as e: last = errno.errorcode[e.errno]; break
    files += 1
    before = stored
    for size in sizes:
        try: os.setxattr(fd, 'user.big', os.urandom(size)); stored += size; break
        except OSError as e: last = errno.errorcode[e.errno]
    os.close(fd)
    refused = 0 if stored > before else refused + 1
    if refused > 100: break
    if files % 1024 == 0: os.sync()
os.sync()
print(f'files: {files}')
print(f'stored: {stored}')
print(f'last: {last}')
";
    let ran = attack(&arena, body).await?;
    let answers = prober::answers(&ran)?;
    let stored: u64 = answers["stored"].parse()?;
    ensure!(stored > MIB && stored <= DISK, "{answers:?}");
    ensure!(
        matches!(&*answers["last"], "ENOSPC" | "EDQUOT"),
        "{answers:?}"
    );
    arena.others_are_fine().await?;
    host.lost_at_most(&arena, DISK + METADATA)?;
    arena.attack("rm -r /attributes").await?.exited(0)?;
    arena.check().await
}

/// Directories at the top of a sandbox become links out and up, and it is stopped: what it uses is told, it starts, and it is deleted,
/// with nothing of the host looked at, changed or removed.
#[tokio::test(flavor = "multi_thread")]
async fn attack_f21_stopped_sandbox_full_of_links() -> Result<()> {
    let arena = Arena::new().await?;
    let canary = arena.host_canary_file();
    let up = "../".repeat(20);
    let script = format!(
        "for d in home media mnt opt root srv tmp var; do rm -rf /$d; ln -s {up} /$d; done
        for d in etc/sub etc2 run/sub; do ln -s {up}{} /$d; done; ls -d /tmp/.",
        canary.display()
    );
    arena.attack(&script).await?.exited(0)?;
    for _ in 0..2 {
        arena.attacker.stop().await?;
        let stats = arena.attacker.stats().await?;
        ensure!(
            stats.disk_bytes.is_some_and(|bytes| bytes < 1 << 30),
            "{stats:?}"
        );
        arena.attacker.start().await?;
        let run = arena
            .attacker
            .run("cat /root/CANARY_HOST /etc2 /run/sub; pwd -P");
        let ran = arena.unseen(run.root().cwd("/root").await?)?;
        ensure!(ran.text() == "/\n", "{}", ran.story());
    }
    let stopped = arena.daemon.api().room("stopped").await?;
    stopped.run(&script).root().await?.exited(0)?;
    stopped.stop().await?;
    stopped.delete().await?;
    ensure!(canary.exists());
    arena.check().await
}
