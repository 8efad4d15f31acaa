//! The pool of the driver btrfs: a file system in a file of the state directory. It is made once, is seen by the daemon and its
//! sandboxes alone, outlives daemons, and whatever happens to it `btrfs check` finds nothing.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lodge_proto::v1::SandboxState;
use lodge_tests::daemon::{Daemon, Options, StateFs};
use lodge_tests::fault::points_of;
use lodge_tests::{pool, storage};
use nix::sys::statvfs::statvfs;
use tonic::Code;

const MIB: u64 = 1 << 20;
/// Where btrfs has its superblock, and in that its generation: both fixed by the format.
const SUPERBLOCK: u64 = 64 << 10;
const GENERATION: u64 = 0x48;
/// Copies until one is of a moment between two transactions.
const TRIES: usize = 20;

/// A pool is the daemon's and its sandboxes' alone; a daemon that dies leaves it to the next one, and the last process gives
/// everything back.
#[tokio::test(flavor = "multi_thread")]
async fn pool_outlives_daemons_and_goes_with_the_last_process() -> Result<()> {
    let mut daemon = pool::daemon().await?;
    let room = daemon.api().room("room").await?;
    room.run("echo kept > file; sync").await?.exited(0)?;
    pool::is_mounted_once(&daemon)?;
    let file = pool::file(&daemon.state_dir());
    ensure!(fs::metadata(&file)?.len() == pool::BYTES);
    for _ in 0..3 {
        daemon.kill9()?;
        daemon.start_again()?;
        pool::is_mounted_once(&daemon)?;
        ensure!(room.run("cat file").await?.ok()? == "kept");
    }
    // No sandbox lives that holds it, and a new daemon finds it.
    room.stop().await?;
    daemon.terminate()?;
    storage::no_loop_devices(&daemon.state_dir())?;
    daemon.start_again()?;
    ensure!(room.run("cat file").await?.ok()? == "kept");
    room.delete().await?;
    storage::nothing_but(&daemon, 0).await?;
    pool::is_sound_when_all_is_ended(&mut daemon)
}

/// What the kernel tells a sandbox of where its root lies in a pool is a number.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e02_root_in_a_pool_tells_no_path() -> Result<()> {
    let daemon = pool::daemon().await?;
    let room = daemon.api().room("room").await?;
    let mounts = room.run("cat /proc/self/mountinfo").await?.ok()?;
    let root = mounts.lines().find(|line| line.contains(" / rw"));
    let root = root.context("a root")?;
    let number = root
        .split(' ')
        .nth(3)
        .and_then(|at| at.strip_prefix("/roots/"));
    let is_number = |text: &str| text.len() == 16 && text.chars().all(|c| c.is_ascii_hexdigit());
    ensure!(number.is_some_and(is_number), "{root}");
    let state = daemon.state_dir().display().to_string();
    ensure!(!mounts.contains(&state), "a path of the host: {mounts}");
    Ok(())
}

/// Grown while a sandbox lives, and larger after a restart too; it does not shrink.
#[tokio::test(flavor = "multi_thread")]
async fn pool_grows_on_request() -> Result<()> {
    let mut daemon = pool::daemon().await?;
    let room = daemon.api().room("room").await?;
    room.run("echo kept > file").await?.exited(0)?;
    let grown = pool::grow(&daemon, 2 * pool::BYTES).await?;
    ensure!(grown.size_bytes == 2 * pool::BYTES, "{grown:?}");
    let less = pool::grow(&daemon, pool::BYTES).await.err();
    let less = less.context("it shrank")?;
    ensure!(less.code() == Code::InvalidArgument, "{less:?}");
    let file = pool::file(&daemon.state_dir());
    ensure!(fs::metadata(&file)?.len() == 2 * pool::BYTES);
    daemon.kill9()?;
    daemon.start_again()?;
    let same = pool::grow(&daemon, 2 * pool::BYTES).await?;
    ensure!(same.size_bytes == 2 * pool::BYTES, "{same:?}");
    ensure!(room.run("cat file").await?.ok()? == "kept");
    pool::is_sound_when_all_is_ended(&mut daemon)
}

/// Points of growing, of all of a pool's.
fn is_of_growing(point: &str) -> bool {
    ["pool.extend", "pool.tell", "pool.resize", "pool.take back"]
        .iter()
        .any(|prefix| point.starts_with(prefix))
}

/// Killed wherever there is a point while its first daemon makes the pool: the next one makes it, or finds it.
#[tokio::test(flavor = "multi_thread")]
async fn case_j1_killed_while_the_pool_is_made() -> Result<()> {
    let of_first_start = [
        "storage.",
        "pool.",
        "btrfs.enable quotas",
        "image.remember form",
    ];
    for point in points_of(&of_first_start)? {
        if is_of_growing(&point) {
            continue;
        }
        made_after_a_kill(&point).await.with_context(|| point)?;
    }
    Ok(())
}

async fn made_after_a_kill(point: &str) -> Result<()> {
    let fault = format!("{point}=kill@1");
    let options = Options {
        env: vec![("LODGE_FAULTS".to_owned(), fault)],
        ..pool::options()
    };
    let mut daemon = Daemon::prepare(options).await?;
    ensure!(daemon.start_again().is_err(), "it was not reached");
    daemon.ended()?;
    daemon.set_env(&[]);
    daemon.start_again()?;
    pool::is_mounted_once(&daemon)?;
    pool::import(&daemon).await?;
    let room = daemon.api().room("room").await?;
    room.run("echo kept > file; cat file").await?.exited(0)?;
    let here: Vec<_> = fs::read_dir(daemon.state_dir())?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("pool") || name.starts_with("storage"))
        .collect();
    ensure!(
        here.len() == 3,
        "pool, pool.img and storage.json, not {here:?}"
    );
    pool::is_sound_when_all_is_ended(&mut daemon)
}

/// A driver that was never of use binds nobody: who cannot have a pool takes the other one.
#[tokio::test(flavor = "multi_thread")]
async fn first_start_that_fails_leaves_the_choice_open() -> Result<()> {
    let fault = ("LODGE_FAULTS".to_owned(), "pool.format=full@1".to_owned());
    let options = Options {
        env: vec![fault],
        ..pool::options()
    };
    let mut daemon = Daemon::prepare(options).await?;
    ensure!(daemon.start_again().is_err(), "it was not reached");
    daemon.set_env(&[("LODGE_STORAGE_DRIVER", "overlay")]);
    daemon.start_again()?;
    let remembered = fs::read_to_string(daemon.state_dir().join("storage.json"))?;
    ensure!(remembered.contains("overlay"), "{remembered}");
    Ok(())
}

/// Killed wherever there is a point while it grows: it has one of the two sizes, works, and grows at the next request.
#[tokio::test(flavor = "multi_thread")]
async fn case_j1_killed_while_the_pool_grows() -> Result<()> {
    for point in points_of(&["pool."])? {
        if is_of_growing(&point) {
            grown_after_a_kill(&point).await.with_context(|| point)?;
        }
    }
    Ok(())
}

async fn grown_after_a_kill(point: &str) -> Result<()> {
    let mut daemon = pool::daemon().await?;
    let room = daemon.api().room("room").await?;
    room.run("echo kept > file; sync").await?.exited(0)?;
    daemon.kill9()?;
    // What was begun is taken back after a failure alone.
    let fails = if point.starts_with("pool.take back") {
        "pool.resize=error@1,"
    } else {
        ""
    };
    let fault = format!("{fails}{point}=kill@1");
    daemon.set_env(&[("LODGE_FAULTS", &fault)]);
    daemon.start_again()?;
    ensure!(pool::grow(&daemon, 2 * pool::BYTES).await.is_err());
    daemon.ended()?;
    daemon.set_env(&[]);
    daemon.start_again()?;
    ensure!(room.run("cat file").await?.ok()? == "kept");
    let grown = pool::grow(&daemon, 2 * pool::BYTES).await?;
    ensure!(grown.size_bytes == 2 * pool::BYTES, "{grown:?}");
    pool::is_mounted_once(&daemon)?;
    pool::is_sound_when_all_is_ended(&mut daemon)
}

/// What fails while it grows is taken back, or stays if the file system has it already; the next request makes it grow.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d02_failed_while_the_pool_grows() -> Result<()> {
    let mut daemon = pool::daemon().await?;
    let room = daemon.api().room("room").await?;
    room.run("echo kept > file; sync").await?.exited(0)?;
    let mut bytes = pool::BYTES;
    for point in points_of(&["pool.extend", "pool.tell", "pool.resize"])? {
        let fault = format!("{point}=error@1");
        daemon.kill9()?;
        daemon.set_env(&[("LODGE_FAULTS", &fault)]);
        daemon.start_again()?;
        let refused = pool::grow(&daemon, bytes + pool::BYTES).await;
        ensure!(refused.is_err(), "{point}: {refused:?}");
        if point == "pool.resize.done" {
            bytes += pool::BYTES;
        }
        let file = fs::metadata(pool::file(&daemon.state_dir()))?.len();
        ensure!(file == bytes, "{point}: {file} bytes");
        bytes += pool::BYTES;
        let grown = pool::grow(&daemon, bytes).await?;
        ensure!(grown.size_bytes == bytes, "{point}: {grown:?}");
        ensure!(room.run("cat file").await?.ok()? == "kept");
    }
    daemon.kill9()?;
    daemon.set_env(&[]);
    daemon.start_again()?;
    pool::is_sound_when_all_is_ended(&mut daemon)
}

/// The host loses its power: the pool's file is as it was at some moment while it was written. Sandboxes are listed as stopped,
/// what was synced is there, and the pool is sound.
#[tokio::test(flavor = "multi_thread")]
async fn case_j3_pool_is_cut_off_in_the_middle() -> Result<()> {
    let mut daemon = pool::daemon().await?;
    let mut rooms = Vec::new();
    for name in ["one", "two"] {
        let room = daemon.api().room(name).await?;
        room.run(format!("echo {name} > file; sync"))
            .await?
            .exited(0)?;
        // On its way, at the most.
        let more = "i=0; while [ $i -lt 200 ]; do echo $i > more-$i; i=$((i + 1)); done";
        room.run(more).await?.exited(0)?;
        rooms.push((name, room));
    }
    let file = pool::file(&daemon.state_dir());
    let cut = file.with_extension("cut");
    cut_off(&file, &cut)?;
    daemon.kill9()?;
    daemon.slot().end_sandboxes()?;
    storage::no_loop_devices(&daemon.state_dir())?;
    fs::rename(&cut, &file)?;
    // As a mount replays it.
    daemon.start_again()?;
    for one in daemon.api().list().await? {
        ensure!(one.state() == SandboxState::Stopped, "{one:?}");
    }
    for (name, room) in &rooms {
        ensure!(room.run("cat file").await?.ok()? == *name);
        room.run("echo more > more; sync").await?.exited(0)?;
    }
    rooms[0].1.delete().await?;
    storage::nothing_but(&daemon, 1).await?;
    pool::is_sound_when_all_is_ended(&mut daemon)
}

/// Copies what is on the disk of a mounted btrfs, of one moment: nothing is written anew before the next superblock.
fn cut_off(file: &Path, copy: &Path) -> Result<()> {
    for _ in 0..TRIES {
        let before = generation(file)?;
        let copied = Command::new("cp")
            .arg("--sparse=always")
            .args([file, copy])
            .status()?;
        ensure!(copied.success(), "cp: {copied}");
        if generation(file)? == before && generation(copy)? == before {
            return Ok(());
        }
    }
    anyhow::bail!("no moment was found between two transactions")
}

fn generation(file: &Path) -> Result<u64> {
    let mut file = File::open(file)?;
    file.seek(SeekFrom::Start(SUPERBLOCK + GENERATION))?;
    let mut bytes = [0; 8];
    file.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Writes of sandboxes end where the host's reserve begins, before the pool itself can fail; deleting makes room again.
#[tokio::test(flavor = "multi_thread")]
async fn attack_r10_pool_stops_at_the_reserve() -> Result<()> {
    const HOST: &str = "size=640m,nr_inodes=65536";
    const RESERVE: u64 = 320 * MIB;
    let options = Options {
        state_fs: Some(StateFs::Memory(HOST)),
        config: format!(
            "[storage]\npool_bytes = {}\nreserve_bytes = {RESERVE}\n",
            pool::BYTES
        ),
        ..pool::options()
    };
    let daemon = Daemon::start(options).await?;
    pool::import(&daemon).await?;
    let room = daemon.api().room("filler").await?;
    let neighbour = daemon.api().room("neighbour").await?;
    neighbour.run("echo kept > file").await?.exited(0)?;
    let ran = room
        .run("cat /dev/zero > big; sync big; stat -c %s big")
        .await?;
    let errors = ran.errors();
    ensure!(
        errors.contains("No space left") || errors.contains("quota exceeded"),
        "{}",
        ran.story()
    );
    let written: u64 = ran.text().trim().parse()?;
    let fs = statvfs(&daemon.state_dir())?;
    let free = fs.blocks_available() * fs.fragment_size();
    // What a transaction that is under way may still take.
    ensure!(
        free + 32 * MIB >= RESERVE,
        "{free} bytes are free, {written} written"
    );
    ensure!(written > 64 * MIB, "only {written} bytes");
    ensure!(neighbour.run("cat file").await?.ok()? == "kept");
    room.delete().await?;
    lodge_tests::wait::until("there is room again", Duration::from_secs(60), || async {
        let ran = neighbour.run("echo more > more; sync more").await?;
        Ok((ran.code() == 0).then_some(()))
    })
    .await
}
