//! Attack D11: the file system under one sandbox's files is full, read-only or broken while everything else is well.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use lodge_tests::api::reason;
use lodge_tests::daemon::Daemon;
use lodge_tests::host;
use lodge_tests::room::Room;
use lodge_tests::wait::{SOON, until};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tonic::Status;

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
        let daemon = Daemon::new().await?;
        let room = daemon.api().room("on-its-own").await?;
        let neighbour = daemon.api().room("neighbour").await?;
        room.run("echo kept > file").await?.exited(0)?;
        room.stop().await?;
        let ground = Self {
            daemon,
            room,
            neighbour,
        };
        let (layer, old) = (ground.layer(), ground.layer().with_extension("old"));
        fs::rename(&layer, &old)?;
        fs::create_dir(&layer)?;
        mount(&layer)?;
        let copied = Command::new("cp")
            .arg("-a")
            .arg(old.join("."))
            .arg(&layer)
            .status()?;
        ensure!(copied.success(), "cp: {copied}");
        fs::remove_dir_all(&old)?;
        ensure!(ground.room.run("cat file").await?.ok()? == "kept");
        Ok(ground)
    }

    fn layer(&self) -> PathBuf {
        let sandboxes = self.daemon.state_dir().join("sandboxes");
        sandboxes.join(self.room.id()).join("layer")
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
