//! Case J4 and attack D19: another binary takes over what runs, forwards and back, also when the old one is killed. What
//! the two do not both speak, they say.

use std::fs;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use lodge_proto::v1::{self as pb, SandboxState};
use lodge_tests::binary;
use lodge_tests::daemon::Daemon;
use lodge_tests::fake_holder::{FakeHolder, Story};
use lodge_tests::live::contains;
use lodge_tests::room::Room;
use lodge_tests::wait::{SOON, until};

/// A build for tests lets itself be told which versions of PID 1's protocol it claims to speak.
const CLAIM: &str = "LODGE_TEST_PROTOCOL";

/// A copy of the daemon's binary at another path, as a package's upgrade brings one.
fn another_binary(daemon: &Daemon, name: &str) -> Result<PathBuf> {
    let dir = daemon.slot().state().join("upgrade");
    fs::create_dir_all(&dir)?;
    let path = dir.join(name);
    fs::copy(binary::path("lodged")?, &path)?;
    Ok(path)
}

fn claims(versions: &str) -> Vec<(String, String)> {
    vec![(CLAIM.to_owned(), versions.to_owned())]
}

async fn goes_on(room: &Room, run_id: &str) -> Result<()> {
    let before = room.whole_log(run_id, pb::Stream::Stdout).await?.len();
    until("the run goes on", SOON, || async {
        let now = room.whole_log(run_id, pb::Stream::Stdout).await?.len();
        Ok((now > before).then_some(()))
    })
    .await
}

/// Lines of the run's log are its numbers, each once and in order, up to the last line, which says how many there were.
fn is_whole(log: &[u8]) -> Result<()> {
    let text = String::from_utf8_lossy(log);
    let lines: Vec<&str> = text.lines().collect();
    let (last, numbers) = lines.split_last().expect("at least the last line");
    for (number, line) in numbers.iter().enumerate() {
        ensure!(*line == number.to_string(), "line {number} is {line:?}");
    }
    ensure!(*last == format!("end {}", numbers.len()), "{last:?}");
    Ok(())
}

const COUNT: &str =
    "i=0; until [ -e stop ]; do echo $i; i=$((i + 1)); sleep 0.005; done; echo end $i; exit 9";

/// A new binary takes over live runs of the old one, and the old one takes them back: after an orderly stop and after a
/// kill -9, to a newer version of the protocol and to an older one. The run's output is whole, and its end is known.
#[tokio::test(flavor = "multi_thread")]
async fn case_j4_attack_d19_upgrade_and_back_with_live_runs() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("upgrade").await?;
    let holder = room.holder_pid(&daemon.cgroup())?;
    let live = room.run(COUNT).start().await?;
    let old = binary::path("lodged")?;
    let new = another_binary(&daemon, "lodged-new")?;
    // N to N + 1, back to N, to one that is older than both, and on.
    let versions = [
        (&new, "2-3", true),
        (&old, "1-2", false),
        (&new, "1-1", false),
        (&old, "1-2", true),
    ];
    for (program, versions, in_order) in versions {
        if in_order {
            daemon.terminate()?;
        } else {
            daemon.kill9()?;
        }
        daemon.upgrade_to(program.clone(), claims(versions));
        daemon.start_again()?;
        ensure!(room.get().await?.state() == SandboxState::Running);
        ensure!(
            room.holder_pid(&daemon.cgroup())? == holder,
            "PID 1 was replaced"
        );
        goes_on(&room, &live.run_id).await?;
        ensure!(room.run("echo fine").await?.ok()? == "fine");
        // What this one starts is found by the next one.
        let fresh = daemon
            .api()
            .room(&format!("by-{versions}-{in_order}"))
            .await?;
        ensure!(fresh.run("echo fine").await?.ok()? == "fine");
    }
    ensure!(
        daemon
            .api()
            .list()
            .await?
            .iter()
            .all(|one| one.state() == SandboxState::Running)
    );
    room.run("touch stop").await?.exited(0)?;
    let log = until("the run has ended", SOON, || async {
        let log = room.whole_log(&live.run_id, pb::Stream::Stdout).await?;
        Ok(contains(&log, b"end ").then_some(log))
    })
    .await?;
    is_whole(&log)?;
    let request = pb::GetRunRequest {
        sandbox: lodge_tests::api::by_id(room.id()),
        run_id: live.run_id.clone(),
    };
    let told = until("its end is told", SOON, || async {
        let told = daemon.api().exec().get_run(request.clone()).await?;
        Ok(told.into_inner().result)
    })
    .await?;
    ensure!(told.exit_code == 9, "{told:?}");
    daemon.stop()
}

/// A PID 1 with which the daemon has no version in common is left alone: its sandbox is damaged with a reason that says which
/// way to go, its run goes on, others do not notice, and it is as before for a daemon that speaks its version.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d19_no_version_in_common() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("foreign").await?;
    let neighbour = daemon.api().room("neighbour").await?;
    let live = room.run(COUNT).start().await?;
    for (oldest, newest, way) in [(7, 9, "newer lodged"), (0, 0, "older lodged")] {
        daemon.kill9()?;
        let foreign = FakeHolder::instead_of(&room, &daemon, Story::Versions(oldest, newest))?;
        daemon.start_again()?;
        let seen = room.get().await?;
        ensure!(
            seen.state() == SandboxState::Damaged && seen.state_reason.contains(way),
            "{seen:?}"
        );
        ensure!(neighbour.run("echo fine").await?.ok()? == "fine");
        drop(foreign);
    }
    daemon.restart()?;
    ensure!(room.get().await?.state() == SandboxState::Running);
    goes_on(&room, &live.run_id).await?;
    // An older one that can be spoken to, and a newer one that still speaks ours: they know of no run, so that is lost.
    for (oldest, newest) in [(0, 1), (2, 8)] {
        daemon.kill9()?;
        let foreign = FakeHolder::instead_of(&room, &daemon, Story::Versions(oldest, newest))?;
        daemon.start_again()?;
        ensure!(
            room.get().await?.state() == SandboxState::Running,
            "{oldest} to {newest}"
        );
        daemon.kill9()?;
        drop(foreign);
        daemon.start_again()?;
    }
    ensure!(room.run("echo fine").await?.ok()? == "fine");
    daemon.stop()
}
