//! Attacks D10 and D17: the disk under the state directory is full, or slow.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::api::reason;
use lodge_tests::arena::{HEALTH_WITHIN, NEIGHBOUR_WITHIN, no_timeout};
use lodge_tests::daemon::{Daemon, Options};
use lodge_tests::room::Room;
use lodge_tests::wait::{SOON, until};
use tonic::{Code, Request};

/// Size of the state directory's file system.
const SMALL: &str = "size=32m,nr_inodes=4096";
/// What is left free while sandboxes are made: from nothing to more than one needs, so that each of its writes is once
/// the one that fails.
const FREE_BYTES: [u64; 6] = [0, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
/// The same for inodes.
const FREE_INODES: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 8];
/// How long a slow disk takes, in milliseconds, and how long a caller waits for it.
const SLOW_MS: u64 = 4_000;
const PATIENCE: Duration = Duration::from_secs(1);

/// Counts aloud until the file `stop` is there.
const COUNT: &str =
    "i=0; until [ -e /tmp/stop ]; do echo $i; i=$((i + 1)); sleep 0.01; done; exit 7";

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
        let path = self.dir.join("bytes");
        let mut file = File::create(&path)?;
        let page = [1u8; 4096];
        while file.write_all(&page).is_ok() {}
        let len = file.metadata()?.len();
        Ok(file.set_len(len.saturating_sub(free))?)
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
                status.code() == Code::ResourceExhausted && reason(&status) == "HOST_DISK_FULL",
                "{status:?}"
            );
            Ok(None)
        }
    }
}

async fn delete_works(daemon: &Daemon, room: &Room) -> Result<()> {
    room.delete().await.context("delete with a full disk")?;
    let trash = daemon.state_dir().join("trash");
    until("the trash is empty", SOON, || async {
        Ok((fs::read_dir(&trash)?.count() == 0).then_some(()))
    })
    .await
}

/// With the state directory's file system full, at whichever write: a create is refused with the reason and leaves
/// nothing, live runs go on and end as they do, a delete works, and with space again all is as before.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d10_state_file_system_is_full() -> Result<()> {
    let options = Options {
        state_fs: Some(SMALL.to_owned()),
        ..Options::default()
    };
    let mut daemon = Daemon::start(options).await?;
    let busy = daemon.api().room("busy").await?;
    let goner = daemon.api().room("goner").await?;
    goner.run("echo x > file").await?.exited(0)?;
    let mut count = busy.run(COUNT).with(no_timeout).start().await?;
    count.wait_for("5\n").await?;
    let filler = Filler::new(&daemon)?;
    let (mut made, mut told) = (0, 0);
    let fills = FREE_BYTES
        .map(Some)
        .into_iter()
        .chain(FREE_INODES.map(|_| None));
    for (index, free) in fills.enumerate() {
        match free {
            Some(bytes) => filler.fill(bytes)?,
            None => filler.fill_inodes(FREE_INODES[index - FREE_BYTES.len()])?,
        }
        match made_or_told(&daemon, &format!("squeezed-{index}")).await? {
            Some(room) => {
                made += 1;
                delete_works(&daemon, &room).await?;
            }
            None => told += 1,
        }
        let listed = daemon.api().list().await?;
        ensure!(listed.len() == 2, "a refused create is listed: {listed:?}");
    }
    ensure!(made > 0 && told > 1, "{made} were made, {told} refused");

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
    let left = fs::read_dir(daemon.state_dir().join("sandboxes"))?.count();
    ensure!(left == 1, "{left} directories of sandboxes");
    ensure!(
        !busy.processes_of(&count.run_id).await?.is_empty(),
        "the live run was ended"
    );
    busy.run("touch /tmp/stop").root().await?.exited(0)?;
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
    let caller = tokio::spawn(room.run("echo whole").send());
    // It was started, and its command is gone.
    until("the command ends", SOON, || async {
        let begun = !room.list_runs(10, false).await?.is_empty();
        Ok((begun && room.processes().await?.is_empty()).then_some(()))
    })
    .await?;
    room.delete().await?;
    let ran = caller.await??;
    // It cannot have been killed: so it is told, with its output.
    ensure!(
        ran.exited(0)?.text().trim_end() == "whole",
        "{}",
        ran.story()
    );
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
