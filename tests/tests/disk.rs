//! Attacks D10 and D17: the disk under the state directory is full, or slow.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::api::reason;
use lodge_tests::arena::{HEALTH_WITHIN, NEIGHBOUR_WITHIN, no_timeout};
use lodge_tests::daemon::{Daemon, Images, Options, StateFs};
use lodge_tests::pool;
use lodge_tests::room::Room;
use lodge_tests::storage::Driver;
use lodge_tests::wait::{SOON, until};
use tonic::{Code, Request};

/// The state directory's file system: for the layers of sandboxes, and for a pool.
const SMALL: StateFs = StateFs::Memory("size=96m,nr_inodes=4096");
const SMALL_BTRFS: StateFs = StateFs::Btrfs(2 << 30);
/// What of that is taken at once: an import leaves the last GiB alone, and to fill it each time would take long.
const BALLAST: u64 = 1600 << 20;
/// What is left free while sandboxes are made: from nothing to more than one needs, so that each of its writes is once
/// the one that fails.
const FREE_BYTES: [u64; 9] = [
    0,
    4 << 10,
    8 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    24 << 20,
];
/// The same for inodes, where the file system has a number of them.
const FREE_INODES: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 8];
/// How long a slow disk takes, in milliseconds, and how long a caller waits for it.
const SLOW_MS: u64 = 4_000;
const PATIENCE: Duration = Duration::from_secs(1);

/// Counts aloud until the file `stop` is there.
const COUNT: &str =
    "i=0; until [ -e /dev/shm/stop ]; do echo $i; i=$((i + 1)); sleep 0.01; done; exit 7";

/// What a fill leaves free.
enum Left {
    Bytes(u64),
    Inodes(usize),
}

/// What fills the file system, beside the daemon's own.
struct Filler {
    dir: PathBuf,
}

impl Filler {
    fn new(daemon: &Daemon) -> Result<Self> {
        let dir = daemon.state_dir().join("filler");
        fs::create_dir(&dir)?;
        Ok(Self { dir })
    }

    /// Leaves so many bytes free.
    fn fill(&self, free: u64) -> Result<()> {
        self.empty()?;
        // On a full btrfs a file can be removed, and not always be cut.
        let room = self.dir.join("room");
        // Where there is not that much, all that there is stays free.
        let _less = fs::write(&room, vec![1; usize::try_from(free)?]);
        let mut file = File::create(self.dir.join("bytes"))?;
        let page = [1u8; 4096];
        while file.write_all(&page).is_ok() {}
        // What it let go of is free when it is on disk; that the disk is full it says here once more.
        let _full = rustix::fs::syncfs(&file);
        fs::remove_file(&room).context("make room")?;
        let _full = rustix::fs::syncfs(&file);
        Ok(())
    }

    /// Leaves so many inodes free.
    fn fill_inodes(&self, free: usize) -> Result<()> {
        self.empty()?;
        let mut made = Vec::new();
        loop {
            let path = self.dir.join(made.len().to_string());
            if File::create(&path).is_err() {
                break;
            }
            made.push(path);
        }
        ensure!(made.len() > free, "there were too few inodes to begin with");
        for path in made.iter().rev().take(free) {
            fs::remove_file(path)?;
        }
        Ok(())
    }

    fn empty(&self) -> Result<()> {
        for entry in fs::read_dir(&self.dir)? {
            fs::remove_file(entry?.path())?;
        }
        let _full = rustix::fs::syncfs(File::open(&self.dir)?);
        Ok(())
    }
}

/// Makes a sandbox, or is told that the disk is full.
async fn made_or_told(daemon: &Daemon, name: &str) -> Result<Option<Room>> {
    let request = pb::AcquireRequest {
        name: name.to_owned(),
        ..Default::default()
    };
    match daemon.api().try_acquire(request).await {
        Ok(made) => {
            let room = made.sandbox.context("a sandbox")?;
            Ok(Some(Room::new(daemon.api().clone(), room)))
        }
        Err(status) => {
            ensure!(
                status.code() == Code::ResourceExhausted
                    && ["HOST_DISK_FULL", "HOST_DISK_RESERVE"].contains(&reason(&status).as_str()),
                "{status:?}"
            );
            Ok(None)
        }
    }
}

/// Creates with ever more room, beside two sandboxes that are there: each is made, or refused and leaves nothing.
async fn creates_end_well(daemon: &Daemon, driver: Driver, filler: &Filler) -> Result<()> {
    let inodes: &[usize] = match driver {
        Driver::Overlay => &FREE_INODES,
        Driver::Btrfs => &[],
    };
    let bytes = FREE_BYTES.iter().map(|free| Left::Bytes(*free));
    let fills = bytes.chain(inodes.iter().map(|free| Left::Inodes(*free)));
    let (mut made, mut told) = (0, 0);
    for left in fills {
        match left {
            Left::Bytes(free) => filler.fill(free)?,
            Left::Inodes(free) => filler.fill_inodes(free)?,
        }
        match made_or_told(daemon, &format!("squeezed-{}", made + told)).await? {
            Some(room) => {
                made += 1;
                delete_works(daemon, &room).await?;
            }
            None => told += 1,
        }
        let listed = daemon.api().list().await?;
        ensure!(listed.len() == 2, "a refused create is listed: {listed:?}");
    }
    ensure!(made > 0 && told > 1, "{made} were made, {told} refused");
    Ok(())
}

async fn delete_works(daemon: &Daemon, room: &Room) -> Result<()> {
    room.delete().await.context("delete with a full disk")?;
    let trash = daemon.state_dir().join("trash");
    until("the trash is empty", SOON, || async {
        Ok((fs::read_dir(&trash)?.count() == 0).then_some(()))
    })
    .await
}

/// A daemon whose state directory is on a small file system.
async fn with_little_room(driver: Driver) -> Result<Daemon> {
    let options = Options {
        state_fs: Some(match driver {
            Driver::Overlay => SMALL,
            Driver::Btrfs => SMALL_BTRFS,
        }),
        // A pool cannot have its images elsewhere.
        images: match driver {
            Driver::Overlay => Images::Base,
            Driver::Btrfs => Images::Unset,
        },
        config: "[storage]\nreserve_bytes = 0\n[limits]\ndisk_bytes = 67108864\n".to_owned(),
        ..Options::default()
    };
    let daemon = Daemon::start(options).await?;
    if driver == Driver::Btrfs {
        pool::import(&daemon).await?;
        let ballast = File::create(daemon.state_dir().join("ballast"))?;
        rustix::fs::fallocate(&ballast, rustix::fs::FallocateFlags::empty(), 0, BALLAST)?;
    }
    Ok(daemon)
}

/// With the state directory's file system full, at whichever write: a create is refused with the reason and leaves
/// nothing, live runs go on and end as they do, a delete works, and with space again all is as before.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d10_state_file_system_is_full() -> Result<()> {
    let driver = Driver::of_tests()?;
    let mut daemon = with_little_room(driver).await?;
    let busy = daemon.api().room("busy").await?;
    let goner = daemon.api().room("goner").await?;
    goner.run("echo x > file").await?.exited(0)?;
    let mut count = busy.run(COUNT).with(no_timeout).start().await?;
    count.wait_for("5\n").await?;
    let filler = Filler::new(&daemon)?;
    creates_end_well(&daemon, driver, &filler).await?;

    filler.fill(0)?;
    // Its output cannot be stored, and it says so; it runs all the same.
    let ran = busy.run("echo out; exit 3").await?;
    ensure!(ran.code() == 3, "{}", ran.story());
    ensure!(
        ran.text() == "out\n" || ran.result.message.contains("could not be stored"),
        "{}",
        ran.story()
    );
    delete_works(&daemon, &goner).await?;
    filler.fill(0)?;
    daemon.kill9()?;
    daemon.start_again()?;
    ensure!(daemon.api().list().await?.len() == 1);
    let left = daemon.sandboxes_on_disk()?;
    ensure!(left == 1, "{left} directories of sandboxes");
    ensure!(
        !busy.processes_of(&count.run_id).await?.is_empty(),
        "the live run was ended"
    );
    busy.run(": > /dev/shm/stop").root().await?.exited(0)?;
    until("the live run has ended", SOON, || async {
        Ok(busy
            .processes_of(&count.run_id)
            .await?
            .is_empty()
            .then_some(()))
    })
    .await?;

    filler.empty()?;
    let again = daemon.api().room("goner").await?;
    ensure!(again.run("ls; echo fine").await?.ok()? == "fine");
    // Whatever its file system met meanwhile, a start mends it.
    busy.stop().await?;
    let wrote = busy.run("echo written > file; sync; cat file").await?;
    ensure!(wrote.ok()? == "written", "{}", wrote.story());
    Ok(())
}

/// While the disk takes seconds for a record, health is answered at once, other sandboxes are used, stopped and deleted,
/// a caller's deadline holds, and what was begun is there in the end.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d17_slow_disk() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let other = daemon.api().room("other").await?;
    daemon.kill9()?;
    let slow = format!("record.sync directory=delay:{SLOW_MS}@1");
    daemon.set_env(&[("LODGE_FAULTS", &slow)]);
    daemon.start_again()?;
    let begun = Instant::now();
    let api = daemon.api().clone();
    let creating = tokio::spawn(async move {
        let mut request = Request::new(pb::AcquireRequest {
            name: "slow".into(),
            ..Default::default()
        });
        request.set_timeout(PATIENCE);
        api.sandboxes().acquire(request).await
    });
    let mut used = 0;
    while begun.elapsed() < Duration::from_millis(SLOW_MS) {
        let health = daemon.api().health().await?;
        ensure!(health < HEALTH_WITHIN, "health took {health:?}");
        let ran = other.run("true").await?;
        ensure!(ran.took < NEIGHBOUR_WITHIN, "{}", ran.story());
        if used == 3 {
            let third = daemon.api().room("third").await?;
            third.run("true").await?.exited(0)?;
            third.delete().await?;
        }
        used += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    match creating.await? {
        Err(status) if matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled) => {}
        other => bail!("a deadline of {PATIENCE:?} did not hold: {other:?}"),
    }
    let slow = daemon.api().room("slow").await?;
    ensure!(slow.run("echo there").await?.ok()? == "there");
    Ok(())
}

/// A command has ended well, its output is on its way to a slow disk, and then the sandbox is deleted: who waits for the
/// result gets all of the output.
#[tokio::test(flavor = "multi_thread")]
async fn a_delete_takes_no_output_from_who_waits_for_it() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    daemon.kill9()?;
    daemon.set_env(&[("LODGE_FAULTS", "log.create=delay:1500@1")]);
    daemon.start_again()?;
    let room = daemon.api().room("goner").await?;
    let mut live = room.run("read go; echo whole").start_with_stdin().await?;
    let has = async |some: bool| {
        until("the command is there, and ends", SOON, || async {
            Ok((room.processes().await?.is_empty() != some).then_some(()))
        })
        .await
    };
    has(true).await?;
    live.write(b"go\n").await?;
    has(false).await?;
    room.delete().await?;
    // It cannot have been killed: so it is told, with its output.
    let result = live.end().await?;
    let story = format!("{:?} {:?}", result.end_reason(), live.stdout);
    let exited = result.end_reason() == pb::EndReason::Exited && result.exit_code == 0;
    ensure!(exited, "{story}");
    ensure!(live.stdout == b"whole\n", "{story}");
    Ok(())
}

/// While the disk takes seconds to put a journal of runs on it, or to take it anew, what is known of the runs is told, and
/// others start and end, also those with a name.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d17_slow_disk_under_the_journal_of_runs() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("journal").await?;
    let first = room.run("echo first").await?;
    for point in ["journal.sync", "journal.compact"] {
        daemon.kill9()?;
        // With so many lines of no use it is written anew at the next end.
        let journal = daemon.sandbox_dir(room.id());
        let mut journal = File::options()
            .create(true)
            .append(true)
            .open(journal.join("runs/journal"))?;
        if point == "journal.compact" {
            journal.write_all(&[b'\n'; 400])?;
        }
        let slow = format!("{point}=delay:{SLOW_MS}@1");
        daemon.set_env(&[("LODGE_FAULTS", &slow)]);
        daemon.start_again()?;
        let told = fs::metadata(daemon.log_file())?.len();
        room.run("true").await?.exited(0)?;
        until("the disk is slow", SOON, || async {
            let log = fs::read(daemon.log_file())?;
            let new = String::from_utf8_lossy(&log[usize::try_from(told)?..]).into_owned();
            Ok(new.contains(&format!("point=\"{point}\"")).then_some(()))
        })
        .await?;
        let begun = Instant::now();
        let named = room.run("echo named").request_id(point).await?;
        named.exited(0)?;
        let known = room.get_run(&first.result.run_id).await?;
        ensure!(known.result.is_some(), "{known:?}");
        let listed = room.list_runs(0, false).await?;
        ensure!(listed.iter().any(|run| run.run_id == named.result.run_id));
        let took = begun.elapsed();
        ensure!(
            took < Duration::from_millis(SLOW_MS) / 2,
            "{point}: they took {took:?}"
        );
    }
    daemon.set_env(&[]);
    daemon.kill9()?;
    daemon.start_again()?;
    let listed = room.list_runs(0, false).await?;
    ensure!(listed.len() == 5, "{listed:?}");
    let known = room.get_run(&first.result.run_id).await?;
    ensure!(known.result.is_some_and(|result| result.exit_code == 0));
    Ok(())
}
