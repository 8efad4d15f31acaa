//! Attack D11: the file system under one sandbox's files is full, read-only or broken while everything else is well. On the driver
//! overlay with the layers that there were before layers had file systems of their own, which are plain directories, and with
//! those that have; on btrfs with a pool.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use lodge_tests::api::reason;
use lodge_tests::daemon::{Daemon, Options};
use lodge_tests::room::Room;
use lodge_tests::storage::Driver;
use lodge_tests::wait::{SOON, until};
use lodge_tests::{arena, host, pool, storage};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tonic::Status;

/// User id of a sandbox's user, as it is on disk.
const USER: u32 = 1000;
/// Size of the file system in memory.
const SMALL: &str = "mode=0700,size=1m,nr_inodes=256";
/// Size of the one on a loop device, and of a file on it that no cache has.
const DEVICE_BYTES: u64 = 24 << 20;
const UNREAD_BYTES: usize = 4 << 20;

/// A daemon, a sandbox whose files are on a file system of their own, and one whose are not.
struct Ground {
    daemon: Daemon,
    room: Room,
    neighbour: Room,
}

impl Ground {
    /// `mount` puts the file system where it is told.
    async fn new(mount: impl Fn(&Path) -> Result<()>) -> Result<Self> {
        let daemon = overlay().await?;
        let room = daemon.api().room("on-its-own").await?;
        let neighbour = daemon.api().room("neighbour").await?;
        room.stop().await?;
        let ground = Self {
            daemon,
            room,
            neighbour,
        };
        let layer = ground.layer();
        fs::remove_dir_all(&layer)?;
        fs::create_dir(&layer)?;
        mount(&layer)?;
        as_before_limits(&layer)?;
        ensure!(ground.room.run("cat file").await?.ok()? == "kept");
        Ok(ground)
    }

    fn layer(&self) -> PathBuf {
        self.daemon.sandbox_dir(self.room.id()).join("layer")
    }

    /// The other one can be written, and nothing ended the daemon.
    async fn others_are_fine(&self) -> Result<()> {
        let ran = self.neighbour.run("echo x > file; cat file").await?;
        ensure!(ran.ok()? == "x", "{}", ran.story());
        Ok(())
    }

    /// A write in it fails as writes do, and what needs none works.
    async fn a_write_fails(&self, why: &str) -> Result<()> {
        let ran = self.room.run("echo more > more").await?;
        ensure!(
            ran.code() != 0 && ran.errors().contains(why),
            "{}",
            ran.story()
        );
        ensure!(self.room.run("cat file").await?.ok()? == "kept");
        self.others_are_fine().await
    }

    /// It stops; that it starts is not asked for, but that the refusal has a reason.
    async fn stops_and_may_not_start(&self) -> Result<Option<String>> {
        self.room.stop().await?;
        let refused = match self.room.run("cat file").send().await {
            Ok(ran) => {
                ensure!(ran.ok()? == "kept", "{}", ran.story());
                None
            }
            Err(status) => Some(reason_of(&status)?),
        };
        self.others_are_fine().await?;
        Ok(refused)
    }

    /// It is deleted whatever is the matter; its files go as soon as they can.
    async fn goes_when_deleted(mut self) -> Result<()> {
        self.room.delete().await.context("delete")?;
        let listed = self.daemon.api().list().await?;
        ensure!(listed.len() == 1, "{listed:?}");
        self.others_are_fine().await?;
        let again = self.daemon.api().room("on-its-own").await?;
        ensure!(again.run("ls; echo fine").await?.ok()? == "fine");
        for place in host::mounts_below(&self.daemon.state_dir())?.iter().rev() {
            umount2(place, MntFlags::MNT_DETACH)?;
        }
        self.daemon.restart()?;
        let trash = self.daemon.state_dir().join("trash");
        until("the trash is empty", SOON, || async {
            Ok((fs::read_dir(&trash)?.count() == 0).then_some(()))
        })
        .await?;
        self.others_are_fine().await
    }
}

/// A daemon on the driver overlay, whichever is under test.
async fn overlay() -> Result<Daemon> {
    Daemon::start(Options {
        driver: Some(Driver::Overlay),
        ..Options::default()
    })
    .await
}

/// Fills a sandbox's directory as it was before layers had a limit, with a file of its user.
fn as_before_limits(layer: &Path) -> Result<()> {
    for (name, mode) in [("upper", 0o755), ("work", 0o700)] {
        fs::create_dir(layer.join(name))?;
        fs::set_permissions(layer.join(name), fs::Permissions::from_mode(mode))?;
    }
    let home = layer.join("upper/home/user");
    fs::create_dir_all(&home)?;
    fs::write(home.join("file"), "kept\n")?;
    for path in [&home, &home.join("file")] {
        chown(path, Some(USER), Some(USER))?;
    }
    Ok(())
}

/// The reason of a refusal, which is never a mere "internal".
fn reason_of(status: &Status) -> Result<String> {
    let reason = reason(status);
    ensure!(!reason.is_empty(), "no reason: {status:?}");
    Ok(reason)
}

fn in_memory(place: &Path) -> Result<()> {
    let kind = Some("tmpfs");
    Ok(mount(kind, place, kind, MsFlags::empty(), Some(SMALL))?)
}

/// Full: writes fail as on any full disk, reads go on, a start says what is the matter; with space again all is well.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d11_full_file_system_of_one_sandbox() -> Result<()> {
    let ground = Ground::new(in_memory).await?;
    let filler = ground.layer().join("filler");
    let fill = || -> Result<()> {
        fs::create_dir(&filler)?;
        let mut file = File::create(filler.join("bytes"))?;
        while file.write_all(&[1; 4096]).is_ok() {}
        let more = (0..).map(|n: u32| filler.join(n.to_string()));
        let _full = more.map(File::create).find(std::io::Result::is_err);
        Ok(())
    };
    fill()?;
    ground.a_write_fails("No space left").await?;
    let refused = ground.stops_and_may_not_start().await?;
    ensure!(refused.as_deref() == Some("HOST_DISK_FULL"), "{refused:?}");
    fs::remove_dir_all(&filler)?;
    ensure!(ground.room.run("echo more > more; cat file").await?.ok()? == "kept");
    fill()?;
    ground.goes_when_deleted().await
}

/// Remounted read-only while it runs: the same, until it is writable again.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d11_read_only_file_system_of_one_sandbox() -> Result<()> {
    let ground = Ground::new(in_memory).await?;
    let layer = ground.layer();
    let remount = |flags: MsFlags| -> Result<()> {
        let none: Option<&str> = None;
        Ok(mount(
            none,
            &layer,
            none,
            MsFlags::MS_REMOUNT | flags,
            none,
        )?)
    };
    remount(MsFlags::MS_RDONLY)?;
    ground.a_write_fails("Read-only file system").await?;
    let refused = ground.stops_and_may_not_start().await?;
    ensure!(
        refused.as_deref() == Some("SANDBOX_FILES_READ_ONLY"),
        "{refused:?}"
    );
    remount(MsFlags::empty())?;
    ensure!(ground.room.run("echo more > more; cat file").await?.ok()? == "kept");
    remount(MsFlags::MS_RDONLY)?;
    ground.goes_when_deleted().await
}

/// A device that fails: what lies on it cannot be read, and whoever does not read it goes on.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d11_broken_device_of_one_sandbox() -> Result<()> {
    let ground = Ground::new(on_a_loop_device).await?;
    let device = device_file(&ground.layer());
    let write = format!("head -c {UNREAD_BYTES} /dev/urandom > unread; pwd");
    let cwd = ground.room.run(write).await?.ok()?;
    let upper = ground.layer().join("upper");
    let unread = File::open(upper.join(cwd.trim_start_matches('/')).join("unread"))?;
    // So that nothing of it is cached.
    unread.sync_all()?;
    posix_fadvise(&unread, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
    drop(unread);
    // The device's blocks are gone, and it goes when it is unmounted.
    File::options().write(true).open(&device)?.set_len(0)?;
    let ran = ground.room.run("cat unread > /dev/null").await?;
    ensure!(
        ran.code() != 0 && ran.errors().contains("Input/output error"),
        "{}",
        ran.story()
    );
    ground.others_are_fine().await?;
    // The kernel may have cached all that a start needs.
    ground.stops_and_may_not_start().await?;
    ground.goes_when_deleted().await
}

fn device_file(layer: &Path) -> PathBuf {
    // Beside the state directory, and so in the test's slot, which is swept.
    let state = layer.ancestors().nth(3).expect("state/sandboxes/id/layer");
    state.with_extension("device")
}

fn on_a_loop_device(place: &Path) -> Result<()> {
    let device = device_file(place);
    File::create(&device)?.set_len(DEVICE_BYTES)?;
    let made = Command::new("mkfs.ext4").arg("-q").arg(&device).status();
    ensure!(made.context("mkfs.ext4")?.success());
    // The kernel releases the device with its last mount.
    let mut command = Command::new("mount");
    command.args(["-t", "ext4", "-o", "loop"]);
    let mounted = command.arg(&device).arg(place).status()?;
    ensure!(mounted.success(), "mount: {mounted}");
    Ok(())
}

/// Forgets what is cached of a file, so that the next read asks the device.
const FORGET: &str = "
import os
f = os.open('unread', os.O_RDONLY)
os.fsync(f)
os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)
";

/// The image of one sandbox's layer is cut short while it runs: it fails where it reads and writes, with a reason where it is
/// started; the others do not notice, and it can be deleted.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d11_image_of_one_layer_is_cut_short() -> Result<()> {
    let daemon = overlay().await?;
    let neighbour = daemon.api().room("neighbour").await?;
    let room = daemon.api().room("cut").await?;
    let base = room.uid_base(&daemon.cgroup())?;
    let write = format!("head -c {UNREAD_BYTES} /dev/urandom > unread && sync");
    room.run(write).await?.exited(0)?;
    room.python(FORGET).await?.exited(0)?;
    let image = daemon.sandbox_dir(room.id()).join("layer/layer.img");
    File::options().write(true).open(&image)?.set_len(0)?;
    let ran = room.run("cat unread > /dev/null").await?;
    ensure!(
        ran.code() != 0 && ran.errors().contains("Input/output error"),
        "{}",
        ran.story()
    );
    let fine = || async {
        let ran = neighbour.run("echo x > file; sync; cat file").await?;
        ensure!(ran.ok()? == "x", "{}", ran.story());
        anyhow::Ok(())
    };
    fine().await?;
    room.stop().await?;
    let refused = room.run("true").send().await;
    let refused = refused.err().context("it was started without its files")?;
    reason_of(&refused)?;
    fine().await?;
    room.delete().await.context("delete")?;
    arena::leaves_nothing(&daemon, room.id(), base).await?;
    storage::nothing_but(&daemon, 1).await?;
    fine().await
}

/// One sandbox's subvolume is made read-only in its pool: its writes fail, its reads and the others do not, and it goes.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d11_read_only_subvolume_of_one_sandbox() -> Result<()> {
    let mut daemon = pool::daemon().await?;
    let room = daemon.api().room("read-only").await?;
    room.run("echo kept > file").await?.exited(0)?;
    let own = pool::root_of(&daemon, &room)?;
    let neighbour = daemon.api().room("neighbour").await?;
    let read_only = |word: &str| -> Result<()> {
        let mut set = Command::new("btrfs");
        let set = set.args(["property", "set", "-f", "-ts"]).arg(&own);
        let set = set.args(["ro", word]).status()?;
        ensure!(set.success(), "btrfs property: {set}");
        Ok(())
    };
    read_only("true")?;
    let ran = room.run("echo more > more").await?;
    ensure!(
        ran.code() != 0 && ran.errors().contains("Read-only file system"),
        "{}",
        ran.story()
    );
    ensure!(room.run("cat file").await?.ok()? == "kept");
    neighbour.run("echo x > file; sync").await?.exited(0)?;
    room.stop().await?;
    // That it starts is not asked for, but that a refusal has a reason.
    if let Err(status) = room.run("cat file").send().await {
        reason_of(&status)?;
    }
    read_only("false")?;
    ensure!(room.run("echo more > more; cat file").await?.ok()? == "kept");
    read_only("true")?;
    room.delete().await?;
    storage::nothing_but(&daemon, 1).await?;
    neighbour.run("cat file").await?.exited(0)?;
    pool::is_sound_when_all_is_ended(&mut daemon)
}

/// The whole pool is lost while it is used: the daemon answers, says what is the matter, and takes deletes.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d11_pool_is_cut_short() -> Result<()> {
    let mut daemon = pool::daemon().await?;
    let room = daemon.api().room("room").await?;
    room.run("echo kept > file; sync").await?.exited(0)?;
    let file = pool::file(&daemon.state_dir());
    File::options().write(true).open(&file)?.set_len(0)?;
    let write = "echo more > more; sync && cat more > /dev/null && sync more";
    if let Ok(ran) = room.run(write).send().await {
        ensure!(ran.code() != 0, "{}", ran.story());
    }
    ensure!(daemon.api().list().await?.len() == 1);
    daemon.api().health().await?;
    let request = lodge_proto::v1::AcquireRequest {
        name: "new".into(),
        ..Default::default()
    };
    // One that was made ahead may be given out: it is in memory.
    match daemon.api().try_acquire(request).await {
        Ok(_) => daemon.api().room("new").await?.delete().await?,
        Err(status) => drop(reason_of(&status)?),
    }
    room.delete().await.context("delete")?;
    ensure!(daemon.api().list().await?.is_empty());
    ensure!(daemon.lives()?);
    daemon.api().health().await.map(drop)
}
