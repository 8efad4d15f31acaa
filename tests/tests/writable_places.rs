//! Every place that a sandbox can write to is known, written down in SECURITY.md, and bounded.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::daemon::Daemon;
use lodge_tests::prober::{self, FILL};
use lodge_tests::room::Room;

/// Mount points in which something can be written, and the words by which the table of SECURITY.md has them. Device nodes of the
/// host, and masks, which are one of them, keep nothing.
const WRITABLE: [(&str, &str); 7] = [
    ("/", "the root file system"),
    ("/dev", "names in /dev"),
    ("/dev/mqueue", "/dev/mqueue"),
    ("/dev/shm", "/dev/shm"),
    ("/etc/hostname", "/etc/hosts"),
    ("/etc/hosts", "/etc/hosts"),
    ("/etc/resolv.conf", "/etc/hosts"),
];
/// That of a sandbox with a read-only root.
const TMP: (&str, &str) = ("/tmp", "/tmp of a sandbox with `read_only_root`");

/// Mount points in which root can write what stays.
async fn found(room: &Room) -> Result<BTreeSet<String>> {
    let look = "for place in $(awk '{print $5}' /proc/self/mountinfo); do
        if [ -d $place ]; then (: >$place/.w) 2>/dev/null && { echo $place; rm $place/.w; }
        elif [ -f $place ]; then (: >>$place) 2>/dev/null && echo $place; fi
    done; true";
    let ran = room.run(look).root().await?.ok()?;
    Ok(ran.lines().map(str::to_owned).collect())
}

/// What can be written to is what is written down, with a read-only root as well.
#[tokio::test(flavor = "multi_thread")]
async fn every_writable_place_is_written_down() -> Result<()> {
    let daemon = Daemon::new().await?;
    let security = Path::new(env!("CARGO_MANIFEST_DIR")).join("../SECURITY.md");
    let security = fs::read_to_string(security)?;
    for read_only_root in [false, true] {
        let request = pb::AcquireRequest {
            name: format!("a-{read_only_root}"),
            read_only_root: Some(read_only_root),
            ..Default::default()
        };
        let room = daemon.api().acquire(request).await?;
        let known: Vec<_> = match read_only_root {
            false => WRITABLE.to_vec(),
            true => WRITABLE[1..].iter().copied().chain([TMP]).collect(),
        };
        let places = known.iter().map(|(place, _)| (*place).to_owned());
        let found = found(&room).await?;
        ensure!(found == places.collect(), "{found:?}");
        for (place, words) in known {
            let row = security
                .lines()
                .find(|line| line.starts_with(&format!("| {words}")));
            row.with_context(|| format!("SECURITY.md has no row of {place}"))?;
        }
    }
    Ok(())
}

/// The small ones take what the table says, and no more: names in /dev, the files over /etc, message queues. Those of files, of memory
/// and of logs have tests of their own (R07, R10, M3, `disk.rs`, `confinement.rs`).
#[tokio::test(flavor = "multi_thread")]
async fn small_places_are_bounded() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("a").await?;
    let body = format!(
        "{FILL}
n = 0
try:
    while n < 5000: os.close(os.open('/dev/%d' % n, os.O_CREAT)); n += 1
except OSError as e: print('files in /dev: ' + errno.errorcode[e.errno])
print('a thousand: %s' % (n <= 1024))
for i in range(n): os.unlink('/dev/%d' % i)
written, why = fill('/dev/big')
print('bytes in /dev: ' + why); print('few: %s' % (written <= 64 << 10))
written, why = fill('/etc/hosts')
print('bytes in /etc: ' + why); print('some: %s' % (written <= 256 << 10))
rt = ctypes.CDLL('librt.so.1', use_errno=True)
attr = struct.pack('llll', 0, 10, 8192, 0) + bytes(32)
n = 0
while n < 100 and rt.mq_open(b'/q%d' % n, os.O_CREAT | os.O_RDWR, 0o600, attr) >= 0: n += 1
print('queues: ' + errno.errorcode[ctypes.get_errno()]); print('ten: %s' % (n <= 10))
"
    );
    let ran = room.python(&prober::program(&body)).root().await?;
    prober::expect(
        &ran,
        &[
            ("files in /dev", "ENOSPC"),
            ("a thousand", "True"),
            ("bytes in /dev", "ENOSPC"),
            ("few", "True"),
            ("bytes in /etc", "ENOSPC"),
            ("some", "True"),
            ("queues", "EMFILE"),
            ("ten", "True"),
        ],
    )?;
    room.run("true").await?.exited(0)?;
    Ok(())
}
