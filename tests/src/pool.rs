//! A daemon whose files are in a pool of its own: the driver btrfs where the state directory lies on another file system. For
//! tests of pools; all others share one btrfs, or have none.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use lodge_proto::v1 as pb;
use tonic::Status;

use crate::daemon::{Daemon, Images, Options, StateAt};
use crate::image;
use crate::room::Room;
use crate::storage::{self, Driver};

/// Size of a pool: an import leaves the last GiB alone. It takes what is in it.
pub const BYTES: u64 = 4 << 30;

/// How such a daemon is configured.
pub fn options() -> Options {
    Options {
        driver: Some(Driver::Btrfs),
        state_at: StateAt::Beside,
        images: Images::Unset,
        config: format!("[storage]\npool_bytes = {BYTES}\n"),
        ..Options::default()
    }
}

/// Starts one with a small image in its pool.
pub async fn daemon() -> Result<Daemon> {
    let daemon = Daemon::start(options()).await?;
    import(&daemon).await?;
    Ok(daemon)
}

/// Puts the small image into the pool.
pub async fn import(daemon: &Daemon) -> Result<()> {
    let archive = image::tiny()?.finish();
    let imported = daemon.api().import(image::BASE, &archive).await;
    imported.map(drop).context("import the small image")
}

/// The pool's file.
pub fn file(state_dir: &Path) -> PathBuf {
    state_dir.join("pool.img")
}

/// The subvolume of a sandbox, as the daemon sees it.
pub fn root_of(daemon: &Daemon, room: &Room) -> Result<PathBuf> {
    let volume = daemon.sandbox_dir(room.id()).join("layer/volume");
    let text = fs::read_to_string(&volume);
    let text = text.with_context(|| format!("read {}", volume.display()))?;
    let volume: serde_json::Value = serde_json::from_str(&text)?;
    let number = volume["number"].as_str().context("a number")?;
    let pool = daemon.state_dir().join("pool/roots");
    let seen = PathBuf::from(format!("/proc/{}/root", daemon.pid()?));
    Ok(seen.join(pool.strip_prefix("/")?).join(number))
}

/// Gives it another size; the error as the daemon gave it.
pub async fn grow(daemon: &Daemon, bytes: u64) -> Result<pb::HostDisk, Status> {
    let request = pb::GrowPoolRequest { bytes };
    let grown = daemon.api().node().grow_pool(request).await?.into_inner();
    grown.host.ok_or_else(|| Status::data_loss("no figures"))
}

/// Fails unless the daemon is the only one to see the pool, on the one loop device that its file has.
pub fn is_mounted_once(daemon: &Daemon) -> Result<()> {
    let state = daemon.state_dir();
    let devices = storage::loop_devices(&file(&state))?;
    ensure!(devices.len() == 1, "loop devices {devices:?}");
    let seen = crate::host::mounts_below(&state)?;
    ensure!(seen.is_empty(), "the host sees {seen:?}");
    let of_daemon = fs::read_to_string(format!("/proc/{}/mountinfo", daemon.pid()?))?;
    let pool = format!(" {} ", state.join("pool").display());
    let times = of_daemon.lines().filter(|l| l.contains(&pool)).count();
    ensure!(times == 1, "the daemon has the pool mounted {times} times");
    Ok(())
}

/// Ends what there is, waits until the kernel has given everything back, and checks the pool.
pub fn is_sound_when_all_is_ended(daemon: &mut Daemon) -> Result<()> {
    if daemon.lives()? {
        daemon.terminate()?;
    }
    daemon.slot().end_sandboxes()?;
    storage::no_loop_devices(&daemon.state_dir())?;
    storage::check_btrfs(&file(&daemon.state_dir()))
}
