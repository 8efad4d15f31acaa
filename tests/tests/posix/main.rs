//! What POSIX says of a file system, asked of a sandbox's root by pjdfstest on either storage driver. Its answers are pinned, test by
//! test: one that fails now is a fault, and one that no longer does is to be written down.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lodge_proto::v1::Stream;
use lodge_tests::binary;
use lodge_tests::daemon::Daemon;
use lodge_tests::room::Room;
use lodge_tests::storage::Driver;

/// The program, in the target directory: `make pjdfstest` brings it.
const PROGRAM: &str = "pjdfstest/bin/pjdfstest";
/// Where it is inside; not in what it tests.
const INSIDE: &str = "/dev/shm/pjdfstest";
const RUN_WITHIN: Duration = Duration::from_secs(120);
/// All that Linux has. Its naps are longer than a clock tick, which is how often time changes for files.
const CONFIG: &str = "
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
secondary_fs = '/dev/shm'
[settings]
naptime = 0.02
[dummy_auth]
entries = [['nobody', 'nogroup'], ['user', 'user']]
";
const ON_OVERLAY: &str = include_str!("overlay.txt");
const ON_BTRFS: &str = include_str!("btrfs.txt");

/// Every test of pjdfstest ends as it is written in `overlay.txt` and `btrfs.txt`.
#[tokio::test(flavor = "multi_thread")]
async fn pjdfstest_ends_as_pinned() -> Result<()> {
    let pinned = match Driver::of_tests()? {
        Driver::Overlay => ON_OVERLAY,
        Driver::Btrfs => ON_BTRFS,
    };
    let pinned = outcomes(pinned)?;
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("posix").await?;
    bring(&room).await?;
    let run =
        format!("NO_COLOR=1 {INSIDE} --configuration-file {INSIDE}.toml --path /var/lib; true");
    let ran = room.run(run).root().timeout(RUN_WITHIN).await?;
    ran.exited(0)?;
    let said = room.whole_log(&ran.result.run_id, Stream::Stdout).await?;
    let said = String::from_utf8(said)?;
    ensure!(
        said.contains("Summary: "),
        "it did not end: {}",
        ran.story()
    );
    let now = outcomes(&said)?;
    let mut other = String::new();
    for name in pinned.keys().chain(now.keys()) {
        let (then, now) = (pinned.get(name), now.get(name));
        if then != now {
            writeln!(other, "{name}: pinned {then:?}, now {now:?}")?;
        }
    }
    ensure!(other.is_empty(), "{other}\n{said}");
    Ok(())
}

/// Brings the program and what it is to do.
async fn bring(room: &Room) -> Result<()> {
    let program = binary::target_dir()?.join(PROGRAM);
    let program = fs::read(&program)
        .with_context(|| format!("read {}: `make pjdfstest` brings it", program.display()))?;
    let live = room
        .run(format!("cat > {INSIDE} && chmod 755 {INSIDE}"))
        .root();
    let mut live = live.start_with_stdin().await?;
    for piece in program.chunks(256 << 10) {
        live.write(piece).await?;
    }
    live.close_stdin().await?;
    ensure!(live.end().await?.exit_code == 0);
    let config = room.run(format!("cat > {INSIDE}.toml")).root();
    config.stdin(CONFIG).await?.exited(0)?;
    Ok(())
}

/// Name and end of each test, of what the program says and of what is pinned: lines of two words; others are none.
fn outcomes(text: &str) -> Result<BTreeMap<&str, &str>> {
    let mut found = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('\t')) {
        if let [name, end @ ("ok" | "FAILED" | "skipped")] =
            line.split_whitespace().collect::<Vec<_>>()[..]
        {
            ensure!(found.insert(name, end).is_none(), "{name} is there twice");
        }
    }
    Ok(found)
}

/// A directory of the image is given another name: overlayfs refuses that as if it were on another file system, which `mv` knows
/// how to do without.
#[tokio::test(flavor = "multi_thread")]
async fn rename_of_a_directory_of_the_image() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("rename").await?;
    let rename = "import errno, os\ntry:\n  os.rename('/etc/pam.d', '/etc/other')\n  print('renamed')\n\
         except OSError as e: print(errno.errorcode[e.errno])";
    let (said, now) = match Driver::of_tests()? {
        Driver::Overlay => ("EXDEV", "pam.d"),
        Driver::Btrfs => ("renamed", "other"),
    };
    let ran = room.argv(&["python3", "-c", rename]).root().await?;
    ensure!(ran.ok()? == said, "{}", ran.story());
    // A directory of the sandbox's own it renames on either.
    let own = room.run("mkdir own && echo x > own/file && python3 -c \"import os; os.rename('own', 'mine')\" && cat mine/file");
    ensure!(own.await?.ok()? == "x");
    let list =
        "find . -printf '%P %y %m %U %G %l\\n' | sort && find . -type f | sort | xargs sha256sum";
    let before = room
        .run(list)
        .cwd(&format!("/etc/{now}"))
        .root()
        .await?
        .ok()?;
    let moved = room.run(format!("mv {now} moved && cd moved && {list}"));
    let moved = moved.cwd("/etc").root().await?;
    ensure!(
        moved.ok()? == before && before.lines().count() > 10,
        "{before}\n{}",
        moved.story()
    );
    Ok(())
}
