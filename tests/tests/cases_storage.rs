//! Case M3: a sandbox that fills its disk, in every way that there is. Its limit holds, the result says so, deleting recovers,
//! and nobody else notices. The same on either storage driver.

use std::fs::File;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lodge_proto::v1::{self as pb, DiskFullPlace, Stream};
use lodge_tests::api::reason;
use lodge_tests::daemon::Daemon;
use lodge_tests::prober::FILL;
use lodge_tests::room::{Ran, Room};
use lodge_tests::storage::{self, Driver};
use lodge_tests::wait::until;
use tonic::Code;

const MIB: u64 = 1 << 20;
/// The limit of what is filled: more than a file system needs for itself, and soon full.
const DISK: u64 = 96 * MIB;
/// The limit of its files, on the driver that counts them; the least that there may be.
const INODES: u64 = 4096;
/// The limit of /dev/shm.
const SHM: u64 = 8 * MIB;
/// What the host may lose beyond a limit: records, logs, and the driver's bookkeeping.
const BESIDE: u64 = 16 * MIB;
/// Deleted files make room within this time.
const ROOM_WITHIN: Duration = Duration::from_secs(30);
/// 300,000 files go in the background within this time.
const BACK_WITHIN: Duration = Duration::from_secs(150);
const MANY_FILES: usize = 300_000;

/// Makes files of a thousand bytes until there is no room; says how many.
const FILL_WITH_FILES: &str = "
import errno, os
os.mkdir('many')
n = 0
try:
    while True:
        with open(f'many/{n}', 'wb', 0) as out: out.write(bytes(1000))
        n += 1
        if n % 4096 == 0: os.sync()
except OSError as e:
    print(n, errno.errorcode[e.errno])
";

/// A sandbox with small limits, and one beside it.
struct Ground {
    daemon: Daemon,
    room: Room,
    neighbour: Room,
}

impl Ground {
    async fn new() -> Result<Self> {
        let daemon = Daemon::new().await?;
        let limits = pb::Limits {
            disk_bytes: Some(DISK.cast_signed()),
            inodes: (Driver::of_tests()? == Driver::Overlay).then_some(INODES.cast_signed()),
            shm_bytes: Some(SHM.cast_signed()),
            ..Default::default()
        };
        let request = pb::AcquireRequest {
            name: "filler".into(),
            limits: Some(limits),
            ..Default::default()
        };
        let room = daemon.api().acquire(request).await?;
        let neighbour = daemon.api().room("neighbour").await?;
        neighbour.run("echo kept > file; sync").await?.exited(0)?;
        Ok(Self {
            daemon,
            room,
            neighbour,
        })
    }

    /// Fills a file until there is no more room.
    async fn fill(&self, path: &str) -> Result<Ran> {
        let program = format!("{FILL}print(*fill('{path}'))");
        self.room.python(&program).await
    }

    fn taken(&self) -> Result<u64> {
        on_disk(&self.daemon)?;
        storage::taken_of_host(&self.daemon.state_dir())
    }

    /// Without what was let go of and has only to be given back to the host: btrfs does that some minutes later.
    fn used(&self) -> Result<u64> {
        on_disk(&self.daemon)?;
        storage::used_by_driver(&self.daemon.state_dir())
    }

    async fn others_are_fine(&self) -> Result<()> {
        let script =
            "head -c 4000000 /dev/zero > more && sync && wc -c < more && cat file && rm more";
        let ran = self.neighbour.run(script).await?;
        ensure!(ran.ok()? == "4000000\nkept", "{}", ran.story());
        ensure!(ran.result.disk_full.is_empty(), "{:?}", ran.result);
        Ok(())
    }

    /// With its disk full: every result says so, no matter what the command did, its logs are whole and a start works.
    async fn full_is_told(&self, place: DiskFullPlace) -> Result<()> {
        let ran = self.room.run("seq 100000").await?;
        ensure!(ran.exited(0)?.out.total_bytes == 588_895);
        is_told(&ran, place)?;
        let log = self
            .room
            .whole_log(&ran.result.run_id, Stream::Stdout)
            .await?;
        ensure!(log.ends_with(b"\n100000\n") && log.len() == 588_895);
        let told = self.room.get_run(&ran.result.run_id).await?;
        let told = told.result.context("it has ended")?;
        ensure!(told.disk_full == ran.result.disk_full, "{told:?}");
        self.others_are_fine().await
    }

    /// With files deleted there is room again, and no result says otherwise.
    async fn recovers(&self, delete: &str) -> Result<()> {
        self.room.run(delete).await?.exited(0)?;
        until("there is room again", ROOM_WITHIN, || async {
            let ran = self.room.run("head -c 1000000 /dev/zero > again && sync");
            let ran = ran.await?;
            Ok((ran.code() == 0 && ran.result.disk_full.is_empty()).then_some(()))
        })
        .await?;
        ensure!(self.room.run("wc -c < again").await?.ok()? == "1000000");
        self.others_are_fine().await
    }
}

/// Has all on disk that was written so far: above all the launcher's copy of the daemon's program (80 MB in a debug build) would
/// come there later, and pass for what a sandbox took.
fn on_disk(daemon: &Daemon) -> Result<()> {
    rustix::fs::syncfs(File::open(daemon.state_dir())?).context("sync the state directory")
}

/// Why a write failed, and what was written until then: one is what the driver's kernel says of a full disk, the other no more
/// than the limit.
fn failed_at(ran: &Ran) -> Result<u64> {
    let text = ran.ok()?;
    let (written, why) = text.split_once(' ').context("two words")?;
    ensure!(matches!(why, "ENOSPC" | "EDQUOT"), "{}", ran.story());
    Ok(written.parse()?)
}

fn is_told(ran: &Ran, place: DiskFullPlace) -> Result<()> {
    let told: Vec<DiskFullPlace> = ran.result.disk_full().collect();
    ensure!(told == [place], "{told:?}: {}", ran.story());
    Ok(())
}

async fn filled_by_one_file(path: &str) -> Result<()> {
    let ground = Ground::new().await?;
    let before = ground.taken()?;
    let ran = ground.fill(path).await?;
    let written = failed_at(&ran)?;
    ensure!(
        written > DISK / 2 && written <= DISK,
        "{written} bytes of {DISK} were written"
    );
    is_told(&ran, DiskFullPlace::Root)?;
    ground.full_is_told(DiskFullPlace::Root).await?;
    let grown = ground.taken()?.saturating_sub(before);
    ensure!(grown <= DISK + BESIDE, "the host has {grown} bytes less");
    let stats = ground.room.stats().await?;
    let (used, limit) = stats
        .disk_bytes
        .zip(stats.disk_limit_bytes)
        .context("figures")?;
    ensure!(
        used > DISK / 2 && used <= limit && limit <= DISK,
        "{stats:?}"
    );
    // Stopped and started with a full disk, it is as it was.
    ground.room.stop().await?;
    let read = format!("wc -c < {path}");
    ensure!(ground.room.run(read).await?.ok()? == written.to_string());
    ground.recovers(&format!("rm {path}")).await
}

/// One large file.
#[tokio::test(flavor = "multi_thread")]
async fn case_m3_filled_by_one_file() -> Result<()> {
    filled_by_one_file("/home/user/big").await
}

/// /tmp is under the same limit.
#[tokio::test(flavor = "multi_thread")]
async fn case_m3_filled_by_way_of_tmp() -> Result<()> {
    filled_by_one_file("/tmp/big").await
}

/// Many small files: whichever runs out first, files or bytes.
#[tokio::test(flavor = "multi_thread")]
async fn case_m3_filled_by_many_small_files() -> Result<()> {
    let ground = Ground::new().await?;
    let before = ground.taken()?;
    let ran = ground.room.python(FILL_WITH_FILES).await?;
    let made = failed_at(&ran)?;
    let (place, most) = match Driver::of_tests()? {
        Driver::Overlay => (DiskFullPlace::RootInodes, INODES),
        // Such a file has its bytes beside its name: more than these it takes in any case.
        Driver::Btrfs => (DiskFullPlace::Root, DISK / 1000),
    };
    ensure!(made > most / 4 && made <= most, "{made} files of {most}");
    is_told(&ran, place)?;
    ground.full_is_told(place).await?;
    let grown = ground.taken()?.saturating_sub(before);
    // Metadata are there twice on btrfs, and counted once.
    ensure!(
        grown <= 2 * DISK + BESIDE,
        "the host has {grown} bytes less"
    );
    ground.recovers("rm -r many").await
}

/// /dev/shm has a limit of its own, which is told by its own name; the disk is not concerned.
#[tokio::test(flavor = "multi_thread")]
async fn case_m3_filled_dev_shm() -> Result<()> {
    let ground = Ground::new().await?;
    let before = ground.taken()?;
    let ran = ground.fill("/dev/shm/big").await?;
    ensure!(failed_at(&ran)? == SHM, "{}", ran.story());
    is_told(&ran, DiskFullPlace::Shm)?;
    ground.full_is_told(DiskFullPlace::Shm).await?;
    ground
        .room
        .run("echo x > file; sync; cat file")
        .await?
        .exited(0)?;
    let grown = ground.taken()?.saturating_sub(before);
    ensure!(grown <= BESIDE, "the host has {grown} bytes less");
    ground.recovers("rm /dev/shm/big").await
}

/// Logs of runs lie outside of its files and have a limit of their own: output takes no room from it, and a full disk none from
/// the output.
#[tokio::test(flavor = "multi_thread")]
async fn case_m3_filled_by_run_logs() -> Result<()> {
    /// What is kept of one run, both streams, and a step on top.
    const LOG: u64 = 72 * MIB;
    let ground = Ground::new().await?;
    let before = ground.used()?;
    let flood = format!("head -c {} /dev/zero", 4 * DISK);
    let ran = ground.room.run(flood).await?;
    ensure!(
        ran.exited(0)?.out.total_bytes == 4 * DISK,
        "{}",
        ran.story()
    );
    ensure!(ran.result.disk_full.is_empty(), "{:?}", ran.result);
    let grown = ground.used()?.saturating_sub(before);
    ensure!(grown <= LOG + BESIDE, "the host has {grown} bytes less");
    ground.others_are_fine().await?;
    let ran = ground.fill("big").await?;
    ensure!(failed_at(&ran)? > DISK / 2, "{}", ran.story());
    ground.full_is_told(DiskFullPlace::Root).await
}

/// A limit that is raised holds at once for what is started, and one below what is used is refused.
#[tokio::test(flavor = "multi_thread")]
async fn case_m3_raised_limit_makes_room() -> Result<()> {
    let ground = Ground::new().await?;
    let first = failed_at(&ground.fill("big").await?)?;
    let update = |bytes: u64| pb::UpdateSandboxRequest {
        limits: Some(pb::Limits {
            disk_bytes: Some(bytes.cast_signed()),
            ..Default::default()
        }),
        ..Default::default()
    };
    let refused = ground.room.update(update(64 * MIB)).await;
    let status = refused.err().context("less than is used")?;
    ensure!(
        status.code() == tonic::Code::FailedPrecondition,
        "{status:?}"
    );
    ground.room.update(update(2 * DISK)).await?;
    let more = failed_at(&ground.fill("more").await?)?;
    let sum = first + more;
    ensure!(sum > DISK * 3 / 2 && sum <= 2 * DISK, "{first} and {more}");
    ground.recovers("rm big more").await
}

/// A delete does not wait for the files, however many they are; their room comes back.
#[tokio::test(flavor = "multi_thread")]
async fn delete_of_300_000_files_returns_at_once() -> Result<()> {
    let daemon = Daemon::new().await?;
    let neighbour = daemon.api().room("neighbour").await?;
    let room = daemon.api().room("many").await?;
    let used = || storage::used_by_driver(&daemon.state_dir());
    on_disk(&daemon)?;
    let before = used()?;
    let make = format!(
        "import os\nfor d in range(300):\n  os.mkdir(f'd{{d}}')\n  \
         for f in range({}): os.close(os.open(f'd{{d}}/{{f}}', os.O_CREAT))\nos.sync()",
        MANY_FILES / 300
    );
    room.python(&make)
        .timeout(Duration::from_secs(100))
        .await?
        .exited(0)?;
    ensure!(room.run("find d* -type f | wc -l").await?.ok()? == MANY_FILES.to_string());
    let full = used()?;
    ensure!(full > before + 20 * MIB, "{before}, then {full} bytes");
    let begun = Instant::now();
    room.delete().await?;
    let took = begun.elapsed();
    ensure!(took < Duration::from_secs(1), "it took {took:?}");
    neighbour.run("echo x > file; sync").await?.exited(0)?;
    until("its room is back", BACK_WITHIN, || async {
        Ok((used()? < before + BESIDE).then_some(()))
    })
    .await
    .with_context(|| format!("{before} bytes before, {full} full, {:?} now", used()))?;
    storage::nothing_but(&daemon, 1).await
}

/// Stopped while it is full, as its idle policy may have it, a sandbox is started again: else nothing could be deleted in it.
#[tokio::test(flavor = "multi_thread")]
async fn case_m3_full_sandbox_is_started_again() -> Result<()> {
    let ground = Ground::new().await?;
    // To the last block, of which what was removed of the image takes some.
    let script = "rm -rf /etc/[a-f]* /usr/share/doc; cat /dev/zero >big; for n in $(seq 5000); do echo x >/$n || break; done";
    ground.room.run(script).root().cwd("/home/user").await?;
    for _ in 0..2 {
        ground.room.stop().await?;
        ground.room.start().await?;
        // What a start had beyond the limit is no room for others.
        let program = format!("{FILL}print(*fill('/more'))");
        let refilled = ground.room.python(&program).root().await?;
        let written: u64 = refilled
            .text()
            .split_whitespace()
            .next()
            .context("a number")?
            .parse()?;
        ensure!(written < MIB, "{}", refilled.story());
    }
    ground
        .room
        .run("rm big && echo recovered > new")
        .await?
        .exited(0)?;
    Ok(())
}

/// What a start makes finds no room: the error says that it is the sandbox's own that is used up, with the figures, and a higher limit
/// mends it.
#[tokio::test(flavor = "multi_thread")]
async fn case_m3_start_without_room_names_the_limit() -> Result<()> {
    let ground = Ground::new().await?;
    let (script, limits) = match Driver::of_tests()? {
        Driver::Overlay => (
            "for n in $(seq 5000); do : >/home/user/$n || break; done 2>/dev/null; true",
            pb::Limits {
                disk_bytes: Some(4 * DISK.cast_signed()),
                inodes: Some(4 * INODES.cast_signed()),
                ..Default::default()
            },
        ),
        // Else a start needs no room here.
        Driver::Btrfs => (
            "mv /etc /etc2; cat /dev/zero >/big; for n in $(seq 5000); do echo x >/$n || break; done",
            pb::Limits {
                disk_bytes: Some(2 * DISK.cast_signed()),
                ..Default::default()
            },
        ),
    };
    ground.room.run(script).root().await?;
    ground.room.stop().await?;
    let refused = ground.room.start().await.err().context("it was started")?;
    ensure!(
        refused.code() == Code::ResourceExhausted
            && reason(&refused) == "SANDBOX_DISK_FULL"
            && refused.message().contains(" of "),
        "{refused:?}"
    );
    let request = pb::UpdateSandboxRequest {
        limits: Some(limits),
        ..Default::default()
    };
    ground.room.update(request).await?;
    ground.room.start().await?;
    ground
        .room
        .run("echo fine > /new")
        .root()
        .await?
        .exited(0)?;
    Ok(())
}
