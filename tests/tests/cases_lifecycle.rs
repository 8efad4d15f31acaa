//! Cases H, K2 and F6: pausing, the idle policy, changes, and races of the lifecycle's calls.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lodge_proto::v1::{self as pb, EndReason, SandboxState};
use lodge_tests::api::{by_id, refused};
use lodge_tests::cgroup;
use lodge_tests::daemon::Daemon;
use lodge_tests::room::Room;
use lodge_tests::wait::until;
use tokio::task::JoinSet;
use tonic::{Code, Status};

/// Longest wait for something that takes milliseconds on an idle host.
const SOON: Duration = Duration::from_secs(20);

/// Case H1: what was written before each of 20 pauses is there, byte for byte, after each of them, in the same sandbox and
/// the same processes.
#[tokio::test]
async fn case_h1_files_outlive_twenty_pauses() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("h1").await?;
    let holder = room.holder_pid(&daemon.cgroup())?;
    for round in 0..20 {
        let write = format!("head -c 65536 /dev/urandom > f{round} && sha256sum f{round} >> sums");
        room.run(write).await?.exited(0)?;
        let paused = room.pause().await?.sandbox.context("a sandbox")?;
        ensure!(paused.state() == SandboxState::Frozen && paused.id == room.id());
        ensure!(room.state().await? == SandboxState::Frozen);
        ensure!(room.resume().await?.state() == SandboxState::Running);
        room.run("sha256sum --quiet --check sums")
            .await?
            .exited(0)?;
    }
    ensure!(
        room.holder_pid(&daemon.cgroup())? == holder,
        "another PID 1"
    );
    Ok(())
}

/// Case H2: a pause and a resume at once, and a hundred random calls from four sides, leave a state that is one of the
/// known ones; nobody hangs, and the sandbox goes on to work. Whoever is refused is told why.
#[tokio::test]
async fn case_h2_pause_resume_run_stop_at_once() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("h2").await?;
    room.run("echo kept > file").await?.exited(0)?;
    for _ in 0..10 {
        let (paused, resumed) = tokio::join!(room.pause(), room.resume());
        paused?;
        resumed?;
        let state = room.state().await?;
        ensure!(
            matches!(state, SandboxState::Running | SandboxState::Frozen),
            "{state:?}"
        );
    }
    let mut callers = JoinSet::new();
    for caller in 0..4u32 {
        let room = room.clone();
        callers.spawn(async move {
            for call in 0..25u32 {
                // Every caller in another order, and each time the same.
                one_of_four(&room, (caller * 7 + call * 5 + call / 4) % 4).await?;
            }
            anyhow::Ok(())
        });
    }
    let all = async {
        while let Some(done) = callers.join_next().await {
            done??;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(Duration::from_secs(120), all)
        .await
        .context("stuck")??;
    ensure!(room.run("cat file").await?.ok()? == "kept");
    ensure!(room.state().await? == SandboxState::Running);
    Ok(())
}

async fn one_of_four(room: &Room, which: u32) -> Result<()> {
    let outcome = match which {
        0 => room.pause().await.map(drop),
        1 => room.resume().await.map(drop),
        2 => room.stop().await.map(drop),
        _ => room.run("true").send().await.map(drop),
    };
    match outcome {
        Ok(()) => Ok(()),
        // Stopped, or overtaken by another caller.
        Err(status) => {
            let code = status.code();
            ensure!(
                matches!(
                    code,
                    Code::FailedPrecondition | Code::Aborted | Code::Unavailable
                ),
                "{code:?}: {status}"
            );
            Ok(())
        }
    }
}

/// Case H3: a delete works while the sandbox is frozen, stopped, damaged, running with commands, and still being created;
/// nothing of it is left on the host.
#[tokio::test]
async fn case_h3_delete_from_every_state() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let names = ["frozen", "stopped", "running", "damaged"];
    let mut rooms = Vec::new();
    for name in names {
        let room = daemon.api().room(name).await?;
        let mut live = room.run("echo on; sleep 1000").start().await?;
        live.wait_for("on").await?;
        rooms.push((room, live));
    }
    rooms[1].0.stop().await?;
    let record = |id: &str| {
        daemon
            .state_dir()
            .join("sandboxes")
            .join(id)
            .join("record.json")
    };
    std::fs::write(record(rooms[3].0.id()), "{")?;
    daemon.kill9()?;
    daemon.start_again()?;
    rooms[0].0.pause().await?;
    let state = |at: usize| rooms[at].0.state();
    ensure!(state(0).await? == SandboxState::Frozen);
    ensure!(state(1).await? == SandboxState::Stopped);
    ensure!(state(3).await? == SandboxState::Damaged);
    for (room, _) in &rooms {
        let begun = Instant::now();
        room.delete().await?;
        ensure!(begun.elapsed() < Duration::from_secs(5));
    }
    // While it is being created: whichever comes first, the name is free and nothing stays.
    let (api, mut calls) = (daemon.api().clone(), JoinSet::new());
    let acquiring = api.clone();
    calls.spawn(async move {
        acquiring
            .room("creating")
            .await
            .map(|room| room.id().to_owned())
    });
    let found = until("it is listed", SOON, || async {
        Ok(api.list().await?.first().map(|sandbox| sandbox.id.clone()))
    })
    .await?;
    api.delete(&found).await?;
    calls.join_next().await.context("joined")??.ok();
    for left in api.list().await? {
        api.delete(&left.id).await?;
    }
    nothing_is_left(&daemon).await
}

/// No group, process or directory of a sandbox.
async fn nothing_is_left(daemon: &Daemon) -> Result<()> {
    until("nothing is left on the host", SOON, || async {
        let groups = cgroup::containing(&daemon.cgroup(), "/runs")?;
        let entries =
            |dir: &str| std::fs::read_dir(daemon.state_dir().join(dir)).map_or(0, Iterator::count);
        let clean = groups.is_empty() && entries("sandboxes") + entries("trash") == 0;
        Ok(clean.then_some(()))
    })
    .await
}

/// Case H4: a run with a timeout of 5 s that is frozen for longer than that in its middle still has the rest of its time
/// afterwards, and then ends by its timeout.
#[tokio::test]
async fn case_h4_deadline_does_not_burn_while_frozen() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("h4").await?;
    // It counts its own time: frozen, it does not count.
    let script = "echo on; for i in $(seq 100); do sleep 0.1; echo $i; done";
    let mut live = room
        .run(script)
        .timeout(Duration::from_secs(5))
        .start()
        .await?;
    live.wait_for("on").await?;
    room.pause().await?;
    let frozen = Instant::now();
    until("the deadline has passed", SOON, || async {
        ensure!(room.get().await?.live_runs == 1, "it ended while frozen");
        Ok((frozen.elapsed() > Duration::from_secs(7)).then_some(()))
    })
    .await?;
    room.resume().await?;
    let result = live.end().await?;
    ensure!(result.end_reason() == EndReason::TimedOut, "{result:?}");
    let counted = String::from_utf8_lossy(&live.stdout).lines().count();
    // Five seconds of tenths, less what starting costs on a busy host.
    ensure!((10..=52).contains(&counted), "it ran for {counted} tenths");
    let ran = result.duration.context("a duration")?;
    ensure!((4..=6).contains(&ran.seconds), "{ran:?}");
    Ok(())
}

/// The reason code of a refusal.
fn reason(status: &Status) -> String {
    use tonic_types::StatusExt as _;
    let info = status.get_details_error_info();
    info.map(|info| info.reason).unwrap_or_default()
}
