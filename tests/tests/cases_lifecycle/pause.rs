//! Cases H1, H2 and H4: what a pause keeps, and its races with other calls and with the daemon's end.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lodge_proto::v1::{self as pb, EndReason, SandboxState};
use lodge_tests::cgroup;
use lodge_tests::daemon::Daemon;
use lodge_tests::room::Room;
use lodge_tests::wait::{SOON, until};
use tokio::task::JoinSet;
use tonic::Code;

use crate::reconnected;

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

/// Case H1: memory that can be had goes back to the host, and the answer says how much the kernel counts less; the file that
/// was in it is whole.
#[tokio::test]
async fn case_h1_memory_goes_back_to_the_host() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("h1-memory").await?;
    room.run("head -c 33554432 /dev/urandom > big && sync big && sha256sum big > sums")
        .await?
        .exited(0)?;
    let reclaimed = room.pause().await?.reclaimed_bytes;
    let reclaimed = reclaimed.context("this host can take memory back")?;
    ensure!(reclaimed >= 16 << 20, "{reclaimed}");
    room.run("sha256sum --quiet --check sums")
        .await?
        .exited(0)?;
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

/// A daemon killed while a sandbox is paused finds it frozen: listed so, its deadline still standing, and it goes on where
/// it was.
#[tokio::test]
async fn case_h4_frozen_over_kill_9() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("h4-killed").await?;
    let script = "echo on; for i in $(seq 20); do sleep 0.1; echo $i; done; echo end";
    let mut live = room
        .run(script)
        .timeout(Duration::from_secs(6))
        .start()
        .await?;
    live.wait_for("on").await?;
    let run = live.run_id.clone();
    room.pause().await?;
    daemon.kill9()?;
    daemon.start_again()?;
    reconnected(&daemon).await?;
    let frozen = Instant::now();
    until("the deadline has passed", SOON, || async {
        let now = room.get().await?;
        ensure!(
            now.state() == SandboxState::Frozen && now.live_runs == 1,
            "{now:?}"
        );
        Ok((frozen.elapsed() > Duration::from_secs(7)).then_some(()))
    })
    .await?;
    room.resume().await?;
    let whole = until("the run has ended", SOON, || async {
        let log = room.whole_log(&run, pb::Stream::Stdout).await?;
        Ok(String::from_utf8_lossy(&log).contains("end").then_some(log))
    })
    .await?;
    ensure!(String::from_utf8_lossy(&whole).lines().count() == 22);
    Ok(())
}

/// Case H2: the daemon is killed in the middle of pauses and resumes. Whatever it had come to, the next one finds the sandbox
/// running or frozen as its control group says, and it works.
#[tokio::test]
async fn case_h2_pause_cut_by_kill_9() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("h2-killed").await?;
    let mut live = room.run("echo on; sleep 1000").start().await?;
    live.wait_for("on").await?;
    for round in 0..8u32 {
        let caller = room.clone();
        let calls = tokio::spawn(async move {
            // Until the daemon is gone.
            while caller.pause().await.is_ok() && caller.resume().await.is_ok() {}
        });
        // Somewhere in the middle: each round a little later.
        tokio::time::sleep(Duration::from_micros(u64::from(round) * 700 + 500)).await;
        daemon.kill9()?;
        calls.await?;
        daemon.start_again()?;
        reconnected(&daemon).await?;
        let told_to_freeze = told_to_freeze(&daemon, &room)?;
        let expected = if told_to_freeze {
            SandboxState::Frozen
        } else {
            SandboxState::Running
        };
        let found = room.get().await?;
        ensure!(
            found.state() == expected,
            "{:?} {told_to_freeze}",
            found.state()
        );
        ensure!(found.live_runs == 1, "the run is gone");
        let timed = room.run("sleep 1000").timeout(Duration::from_millis(300));
        timed.await?.timed_out()?;
    }
    Ok(())
}

/// What the control group of a sandbox's runs was told.
fn told_to_freeze(daemon: &Daemon, room: &Room) -> Result<bool> {
    let groups = cgroup::containing(&daemon.cgroup(), room.id())?;
    let runs = groups.iter().filter(|group| group.ends_with("runs"));
    let told = runs.filter_map(|group| std::fs::read_to_string(group.join("cgroup.freeze")).ok());
    Ok(told.collect::<String>().trim() == "1")
}
