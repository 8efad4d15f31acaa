//! Files in a sandbox on either storage driver against the same work on the host's file system, by the same Python, as the same
//! user: many small files, one large one, and writes that have to be on the disk. The program takes the time itself, so that
//! a run's own does not count.

use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lodge_client::Sandbox;
use lodge_tests::storage::Driver;

use crate::row::{Compared, Goal, Measuring, Row, in_turn};
use crate::world::{Identity, World};

/// Longer than any round takes.
const TIMEOUT: Duration = Duration::from_secs(300);
/// The directory on the host, below the unpacked image: the host's side changes its root to there.
const ON_HOST: &str = "home/user";

/// 20,000 files of a hundred bytes are made, looked at and removed: files per second.
const SMALL_FILES: &str = "
import os, time
files = [f'small/{n % 20}/{n}' for n in range(20000)]
begun = time.monotonic()
os.mkdir('small')
for n in range(20): os.mkdir(f'small/{n}')
for path in files:
    with open(path, 'wb', 0) as out: out.write(bytes(100))
for path in files: assert os.stat(path).st_size == 100
for path in files: os.unlink(path)
for n in range(20): os.rmdir(f'small/{n}')
os.rmdir('small')
print(len(files) / (time.monotonic() - begun))
";
/// A file of 256 MiB is written, and is on the disk: MiB per second.
const WRITE: &str = "
import os, time
block = os.urandom(1 << 20)
begun = time.monotonic()
out = os.open('large', os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
for _ in range(256): assert os.write(out, block) == len(block)
os.fsync(out)
print(256 / (time.monotonic() - begun))
os.close(out)
os.unlink('large')
";
/// A file of 256 MiB is read from the disk, of which nothing is in memory: MiB per second.
const READ: &str = "
import os, time
block = os.urandom(1 << 20)
file = os.open('large', os.O_RDWR | os.O_CREAT | os.O_TRUNC)
for _ in range(256): assert os.write(file, block) == len(block)
os.fsync(file)
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
os.lseek(file, 0, os.SEEK_SET)
begun = time.monotonic()
for _ in range(256): assert len(os.read(file, 1 << 20)) == 1 << 20
print(256 / (time.monotonic() - begun))
os.close(file)
os.unlink('large')
";
/// 200 blocks are added to a file, each on the disk before the next: blocks per second.
const FSYNC: &str = "
import os, time
block = os.urandom(4096)
out = os.open('synced', os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
begun = time.monotonic()
for _ in range(200):
    assert os.write(out, block) == len(block)
    os.fsync(out)
print(200 / (time.monotonic() - begun))
os.close(out)
os.unlink('synced')
";

pub(crate) const SMALL_OVERLAY: Row = Row {
    name: "small_files_on_overlay_vs_host",
    unit: "1/s",
    baseline: "the host's file system",
    compared: Compared::P50,
    goal: Goal::Floor(0.8),
    measure: |world, samples| measure(world, samples, Driver::Overlay, SMALL_FILES),
};
pub(crate) const SMALL_BTRFS: Row = Row {
    name: "small_files_on_btrfs_vs_host",
    measure: |world, samples| measure(world, samples, Driver::Btrfs, SMALL_FILES),
    ..SMALL_OVERLAY
};
pub(crate) const WRITE_OVERLAY: Row = Row {
    name: "write_on_overlay_vs_host",
    unit: "MiB/s",
    measure: |world, samples| measure(world, samples, Driver::Overlay, WRITE),
    ..SMALL_OVERLAY
};
pub(crate) const WRITE_BTRFS: Row = Row {
    name: "write_on_btrfs_vs_host",
    measure: |world, samples| measure(world, samples, Driver::Btrfs, WRITE),
    ..WRITE_OVERLAY
};
pub(crate) const READ_OVERLAY: Row = Row {
    name: "read_on_overlay_vs_host",
    measure: |world, samples| measure(world, samples, Driver::Overlay, READ),
    ..WRITE_OVERLAY
};
pub(crate) const READ_BTRFS: Row = Row {
    name: "read_on_btrfs_vs_host",
    measure: |world, samples| measure(world, samples, Driver::Btrfs, READ),
    ..WRITE_OVERLAY
};
pub(crate) const FSYNC_OVERLAY: Row = Row {
    name: "fsync_on_overlay_vs_host",
    goal: Goal::None,
    measure: |world, samples| measure(world, samples, Driver::Overlay, FSYNC),
    ..SMALL_OVERLAY
};
pub(crate) const FSYNC_BTRFS: Row = Row {
    name: "fsync_on_btrfs_vs_host",
    measure: |world, samples| measure(world, samples, Driver::Btrfs, FSYNC),
    ..FSYNC_OVERLAY
};

fn measure<'a>(
    world: &'a mut World,
    samples: usize,
    driver: Driver,
    program: &'static str,
) -> Measuring<'a> {
    Box::pin(async move {
        let client = world.client_on(Some(driver)).await?;
        let sandbox = client.sandbox("files").await?;
        let (root, identity) = (world.rootfs.dir(), &world.identity);
        let dir = tempfile::Builder::new()
            .prefix("files-")
            .tempdir_in(root.join(ON_HOST))?;
        chown(dir.path(), Some(identity.uid), Some(identity.gid))?;
        let dir = dir.path();
        let outcome = in_turn(
            samples,
            Duration::ZERO,
            async || inside(&sandbox, program).await,
            async || on_host(root, dir, identity, program),
        )
        .await;
        sandbox.delete().await?;
        outcome
    })
}

async fn inside(sandbox: &Sandbox, program: &str) -> Result<Vec<f64>> {
    let run = sandbox.run_argv(["python3", "-c", program]);
    let output = run.timeout(TIMEOUT).await?;
    let said = output.stdout.text().to_string();
    ensure!(
        output.exit_code() == 0,
        "it ended with {}: {}",
        output.exit_code(),
        output.stderr.text()
    );
    figure(&said)
}

fn on_host(root: &Path, dir: &Path, identity: &Identity, program: &str) -> Result<Vec<f64>> {
    let mut command = Command::new("chroot");
    command.arg(format!("--userspec={}", identity.numbers()));
    command.args([root, Path::new("/usr/bin/env"), Path::new("--chdir")]);
    command.arg(Path::new("/").join(dir.strip_prefix(root)?));
    let output = command.args(["python3", "-c", program]).output();
    let output = output.context("run chroot")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "on the host: {}\n{said}",
        output.status
    );
    figure(&String::from_utf8_lossy(&output.stdout))
}

fn figure(said: &str) -> Result<Vec<f64>> {
    let figure = said
        .trim()
        .parse()
        .with_context(|| format!("it said {said:?}"))?;
    Ok(vec![figure])
}
