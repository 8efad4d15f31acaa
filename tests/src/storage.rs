//! On which storage driver the daemons of tests keep their files: `LODGE_TEST_STORAGE`, one of `overlay` (the default) and
//! `btrfs`. Also what the host has of storage, seen from outside the product: loop devices, subvolumes, quota groups, and
//! whether a file system is sound.
//!
//! With `btrfs`, state directories and shared images lie on one file system that `tests/storage.sh up` made.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, statfs};

use crate::binary;
use crate::daemon::Daemon;
use crate::wait::{until, until_blocking};

/// Chooses the driver.
pub const DRIVER_VAR: &str = "LODGE_TEST_STORAGE";
/// The file system for the driver btrfs, in the target directory, and the file that it is in.
const BTRFS_MOUNT: &str = "btrfs";
const BTRFS_FILE: &str = "btrfs.img";
/// The program that knows every feature of the kernel's btrfs, in the target directory: `tests/storage.sh tools` brings it.
const BTRFS_PROGRAM: &str = "btrfs-progs/btrfs";
/// The kernel's number of a subvolume's root directory.
const SUBVOLUME_INODE: u64 = 256;
/// Paths of one command line.
const AT_ONCE: usize = 200;
/// A loop device goes within this time of the last mount of what is on it.
const DETACHED_WITHIN: Duration = Duration::from_secs(20);
/// What is removed in the background is gone within this time.
const LEFT_WITHIN: Duration = Duration::from_secs(20);

/// A storage driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driver {
    /// Layers of the image below, an own file system per sandbox above.
    Overlay,
    /// Snapshots of the image.
    Btrfs,
}

impl Driver {
    /// The one that this run of the tests is about.
    pub fn of_tests() -> Result<Self> {
        match std::env::var(DRIVER_VAR).as_deref() {
            Err(_) | Ok("" | "overlay") => Ok(Self::Overlay),
            Ok("btrfs") => Ok(Self::Btrfs),
            Ok(other) => bail!("{DRIVER_VAR} is {other:?}, neither overlay nor btrfs"),
        }
    }

    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Overlay => "overlay",
            Self::Btrfs => "btrfs",
        }
    }

    /// Where state directories and shared images lie.
    pub fn home(self) -> Result<PathBuf> {
        let target = binary::target_dir()?;
        match self {
            Self::Overlay => Ok(target),
            Self::Btrfs => {
                let home = target.join(BTRFS_MOUNT);
                ensure!(
                    is_btrfs(&home),
                    "no btrfs is mounted at {}: tests/storage.sh up",
                    home.display()
                );
                Ok(home)
            }
        }
    }
}

/// Whether this is there and lies on btrfs.
pub fn is_btrfs(path: &Path) -> bool {
    statfs(path).is_ok_and(|fs| fs.filesystem_type() == BTRFS_SUPER_MAGIC)
}

/// What the files below `dir` take of the disk of the host, in bytes; on the driver btrfs, what the whole file does in which all
/// tests have theirs.
pub fn taken_of_host(dir: &Path) -> Result<u64> {
    if is_btrfs(dir) {
        let file = binary::target_dir()?.join(BTRFS_FILE);
        let meta = fs::metadata(&file).with_context(|| format!("read {}", file.display()))?;
        return Ok(meta.blocks() * 512);
    }
    Ok(blocks_below(dir) * 512)
}

/// What the storage driver has in use for a state directory, in bytes; on btrfs, for all that lies there.
pub fn used_by_driver(dir: &Path) -> Result<u64> {
    if is_btrfs(dir) {
        // statvfs(2) counts what is set aside for metadata as used.
        let allocation = sysfs(dir)?.join("allocation");
        let kinds = ["data", "metadata"].map(|kind| allocation.join(kind).join("bytes_used"));
        return kinds.iter().try_fold(0, |sum, file| {
            let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
            Ok(sum + text.trim().parse::<u64>()?)
        });
    }
    Ok(blocks_below(dir) * 512)
}

fn blocks_below(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let meta = entry.metadata().ok()?;
            let below = if meta.is_dir() {
                blocks_below(&entry.path())
            } else {
                0
            };
            Some(meta.blocks() + below)
        })
        .sum()
}

/// Loop devices whose backing file is or was below `dir`: name, and the file as the kernel tells it.
pub fn loop_devices(dir: &Path) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for device in fs::read_dir("/sys/block").context("list block devices")? {
        let device = device?;
        let file = fs::read_to_string(device.path().join("loop/backing_file"));
        // One that has no file is free.
        let Ok(file) = file else { continue };
        if Path::new(file.trim_end()).starts_with(dir) {
            let name = device.file_name().to_string_lossy().into_owned();
            found.push((name, file.trim_end().to_owned()));
        }
    }
    Ok(found)
}

/// Waits until no loop device has a file below `dir`.
pub fn no_loop_devices(dir: &Path) -> Result<()> {
    let gone = until_blocking("no loop device is left", DETACHED_WITHIN, || {
        Ok(loop_devices(dir)?.is_empty().then_some(()))
    });
    gone.with_context(|| format!("{:?}", loop_devices(dir)))
}

/// Whether this is the root directory of a subvolume.
pub fn is_subvolume(dir: &Path) -> bool {
    fs::symlink_metadata(dir).is_ok_and(|meta| meta.is_dir() && meta.ino() == SUBVOLUME_INODE)
        && is_btrfs(dir)
}

/// Subvolumes of btrfs below `dir`; none of those that lie in another one, which a sandbox cannot make.
pub fn subvolumes(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    if !is_btrfs(dir) {
        return Ok(found);
    }
    let device = fs::symlink_metadata(dir)?.dev();
    let mut todo = vec![dir.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            // One that goes meanwhile is none.
            let Ok(meta) = entry.metadata() else { continue };
            if !meta.is_dir() {
                continue;
            }
            if meta.ino() == SUBVOLUME_INODE && meta.dev() != device {
                found.push(entry.path());
            } else if meta.dev() == device {
                todo.push(entry.path());
            }
        }
    }
    Ok(found)
}

/// Removes a tree with its subvolumes, also those that are read-only, and those in them that a test made from outside.
pub fn remove_tree(dir: &Path) -> Result<()> {
    for some in subvolumes(dir)?.chunks(AT_ONCE) {
        let mut command = Command::new(program()?);
        command
            .args(["--quiet", "subvolume", "delete", "--recursive"])
            .args(some);
        let output = command.output().context("run btrfs")?;
        ensure!(
            output.status.success(),
            "btrfs subvolume delete: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    fs::remove_dir_all(dir).with_context(|| format!("remove {}", dir.display()))
}

/// Snapshots that the driver btrfs has ready for sandboxes to come, and layers that the driver overlay has ready for those with
/// the same limits.
const SPARES: usize = 2;
/// Limits that the driver overlay keeps layers of.
const SPARE_LIMITS: usize = 2;

/// Waits until the driver has nothing on the host but what so many sandboxes need.
pub async fn nothing_but(daemon: &Daemon, sandboxes: usize) -> Result<()> {
    let left = || leftovers(daemon, sandboxes);
    until("nothing is left of others", LEFT_WITHIN, || async {
        Ok(left()?.is_empty().then_some(()))
    })
    .await
    .with_context(|| format!("{:?}", left()))
}

/// What is there beside that: loop devices of layers, subvolumes, and quota groups that no subvolume has.
pub fn leftovers(daemon: &Daemon, sandboxes: usize) -> Result<Vec<String>> {
    let mut left = Vec::new();
    let spares = daemon.state_dir().join("spares");
    // Only a started sandbox has one.
    let (spares, layers): (Vec<_>, Vec<_>) = loop_devices(&daemon.state_dir())?
        .into_iter()
        .filter(|(_, file)| !file.ends_with("/pool.img"))
        .partition(|(_, file)| Path::new(file).starts_with(&spares));
    if layers.len() > sandboxes || spares.len() > SPARES * SPARE_LIMITS {
        left.push(format!("loop devices {layers:?} and {spares:?}"));
    }
    // In a mount namespace of the daemon's own there may be a pool.
    let root = PathBuf::from(format!("/proc/{}/root", daemon.pid()?));
    let state_dir = daemon.state_dir();
    let roots = root.join(state_dir.strip_prefix("/")?).join("pool/roots");
    let roots = fs::read_dir(&roots).into_iter().flatten().count();
    if roots > sandboxes + SPARES {
        left.push(format!("{roots} subvolumes"));
    }
    Ok(left)
}

/// Makes a subvolume, as only the host can.
pub fn make_subvolume(path: &Path) -> Result<()> {
    let mut make = Command::new("btrfs");
    let made = make.args(["--quiet", "subvolume", "create"]).arg(path);
    let made = made.output().context("run btrfs")?;
    let said = String::from_utf8_lossy(&made.stderr);
    ensure!(made.status.success(), "btrfs subvolume create: {said}");
    Ok(())
}

/// Makes a btrfs of this many bytes in a file and mounts it. The kernel releases the loop device with the last mount.
pub fn mount_btrfs(file: &Path, bytes: u64, at: &Path) -> Result<()> {
    fs::create_dir_all(at)?;
    fs::File::create(file)?.set_len(bytes)?;
    // As small as it may be, it has data and metadata in the same blocks.
    let made = Command::new("mkfs.btrfs")
        .args(["--quiet", "--mixed"])
        .arg(file)
        .output();
    let made = made.context("run mkfs.btrfs")?;
    ensure!(
        made.status.success(),
        "mkfs.btrfs: {}",
        String::from_utf8_lossy(&made.stderr)
    );
    let mut mount = Command::new("mount");
    mount.args(["-t", "btrfs", "-o", "loop"]).arg(file).arg(at);
    let mounted = mount.status().context("run mount")?;
    ensure!(mounted.success(), "mount: {mounted}");
    Ok(fs::set_permissions(at, fs::Permissions::from_mode(0o700))?)
}

/// The directory of a mounted btrfs in sysfs: it is named by its UUID, which `findmnt` tells.
fn sysfs(path: &Path) -> Result<PathBuf> {
    let mut find = Command::new("findmnt");
    let find = find.args(["--noheadings", "--output", "UUID", "--target"]);
    let output = find.arg(path).output().context("run findmnt")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // As often as it is mounted there.
    let uuid = text.split_whitespace().next();
    let uuid = uuid.with_context(|| format!("no UUID of {}", path.display()))?;
    Ok(Path::new("/sys/fs/btrfs").join(uuid))
}

/// Fails unless `btrfs check` finds nothing. The file is not mounted.
pub fn check_btrfs(file: &Path) -> Result<()> {
    let mut command = Command::new(program()?);
    sound(command.args(["check", "--readonly"]).arg(file))
}

/// The `btrfs` that knows as much as the kernel.
fn program() -> Result<PathBuf> {
    let program = binary::target_dir()?.join(BTRFS_PROGRAM);
    ensure!(
        program.exists(),
        "{} is missing: tests/storage.sh tools",
        program.display()
    );
    Ok(program)
}

/// Fails unless `e2fsck` finds nothing once the journal was replayed, as a mount does it: what is checked is a copy. The file
/// is not mounted.
pub fn check_ext4(file: &Path) -> Result<()> {
    let copy = file.with_extension("check");
    let copied = Command::new("cp")
        .args(["--sparse=always", "--reflink=auto"])
        .args([file, &copy])
        .status();
    ensure!(copied.context("run cp")?.success(), "cp {}", file.display());
    let outcome = replayed_and_sound(&copy);
    fs::remove_file(&copy)?;
    outcome.with_context(|| file.display().to_string())
}

fn replayed_and_sound(copy: &Path) -> Result<()> {
    let mut replay = Command::new("e2fsck");
    let replay = replay.args(["-E", "journal_only", "-y"]).arg(copy);
    let output = replay.output().context("run e2fsck")?;
    // 1: something was mended, which is what a replay is.
    ensure!(
        output.status.code().is_some_and(|code| code <= 1),
        "its journal: {}",
        String::from_utf8_lossy(&output.stdout)
    );
    sound(Command::new("e2fsck").arg("-fn").arg(copy))
}

fn sound(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?} gave {}:\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
