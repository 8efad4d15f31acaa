//! Cases H, K2 and F6: pausing, the idle policy, changes, and races of the lifecycle's calls.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lodge_proto::v1::{self as pb, EndReason, SandboxState};
use lodge_tests::api::{reason, refused};
use lodge_tests::cgroup;
use lodge_tests::daemon::Daemon;
use lodge_tests::room::Room;
use lodge_tests::wait::{SOON, until};
use tokio::task::JoinSet;
use tonic::{Code, Status};

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

/// A limit below what is used is refused, with the reason, and nothing is killed for it; without what used it, it holds.
#[tokio::test]
async fn case_h5_memory_in_use_is_not_taken() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("h5-memory").await?;
    let program = "import time; x = b'x' * (96 << 20); print('on', flush=True); time.sleep(1000)";
    let mut live = room.python(program).start().await?;
    live.wait_for("on").await?;
    let change = pb::UpdateSandboxRequest {
        limits: Some(pb::Limits {
            memory_bytes: Some(32 << 20),
            ..Default::default()
        }),
        ..Default::default()
    };
    let status = room
        .update(change.clone())
        .await
        .err()
        .context("it took it")?;
    ensure!(reason(&status) == "MEMORY_IN_USE", "{status}");
    ensure!(limit(&room.get().await?, "memory_bytes") == Some(2 << 30));
    ensure!(room.kill(&live.run_id).await? == 1, "it was killed before");
    ensure!(limit(&room.update(change).await?, "memory_bytes") == Some(32 << 20));
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
    reconnected(&daemon).await?;
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

/// Case H5: policy, limits and labels are what they were set to, by acquire or by update, after a stop, a start, another
/// acquire and a restart of the daemon.
#[tokio::test]
async fn case_h5_what_was_set_stays() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let request = pb::AcquireRequest {
        name: "h5".into(),
        labels: [("team".into(), "a".into()), ("old".into(), "x".into())].into(),
        limits: Some(pb::Limits {
            pids: Some(100),
            ..Default::default()
        }),
        idle: Some(idle(3600, 7200, 0)),
        ..Default::default()
    };
    let room = daemon.api().acquire(request).await?;
    let created = room.get().await?;
    ensure!(
        created.idle == Some(idle(3600, 7200, 0)),
        "{:?}",
        created.idle
    );
    stays(&mut daemon, &room).await?;
    let change = pb::UpdateSandboxRequest {
        limits: Some(pb::Limits {
            pids: Some(200),
            memory_bytes: Some(512 << 20),
            ..Default::default()
        }),
        idle: Some(pb::IdlePolicy {
            delete_after: Some(seconds(86_400)),
            ..Default::default()
        }),
        set_labels: [("team".into(), "b".into())].into(),
        remove_labels: vec!["old".into()],
        ..Default::default()
    };
    let changed = room.update(change).await?;
    ensure!(
        changed.idle == Some(idle(3600, 7200, 86_400)),
        "{:?}",
        changed.idle
    );
    ensure!(changed.labels == [("team".to_owned(), "b".to_owned())].into());
    ensure!(
        limit(&changed, "pids") == Some(200) && limit(&changed, "memory_bytes") == Some(512 << 20)
    );
    stays(&mut daemon, &room).await
}

/// Goes through everything that must not change it.
async fn stays(daemon: &mut Daemon, room: &Room) -> Result<()> {
    let before = settings(room).await?;
    room.stop().await?;
    ensure!(settings(room).await? == before, "after a stop");
    room.start().await?;
    ensure!(settings(room).await? == before, "after a start");
    daemon.api().room(&room.info().name).await?;
    ensure!(settings(room).await? == before, "after an acquire");
    daemon.restart()?;
    reconnected(daemon).await?;
    ensure!(settings(room).await? == before, "after a restart");
    Ok(())
}

type Settings = (
    Option<pb::IdlePolicy>,
    std::collections::HashMap<String, String>,
    Vec<pb::LimitStatus>,
);

async fn settings(room: &Room) -> Result<Settings> {
    let now = room.get().await?;
    Ok((now.idle, now.labels, now.limits))
}

/// Limits that the kernel can change while commands run hold at once; the others are told as they are until the next start.
/// A change of which one thing is wrong changes nothing.
#[tokio::test]
async fn case_h5_limits_change_live_or_say_so() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("h5-live").await?;
    let change = |limits| pb::UpdateSandboxRequest {
        limits: Some(limits),
        ..Default::default()
    };
    let changed = room
        .update(change(pb::Limits {
            pids: Some(64),
            open_files: Some(1000),
            ..Default::default()
        }))
        .await?;
    ensure!(limit(&changed, "pids") == Some(64));
    ensure!(
        limit(&changed, "open_files") == Some(4096),
        "it holds from the next start on"
    );
    ensure!(room.run("ulimit -n").await?.ok()? == "4096");
    daemon.restart()?;
    reconnected(&daemon).await?;
    ensure!(
        limit(&room.get().await?, "open_files") == Some(4096),
        "the next daemon knows it too"
    );
    let wrong = pb::UpdateSandboxRequest {
        limits: Some(pb::Limits {
            memory_bytes: Some(256 << 20),
            cpu_millis: Some(1),
            ..Default::default()
        }),
        set_labels: [("a".into(), "b".into())].into(),
        ..Default::default()
    };
    let before = settings(&room).await?;
    refused(
        room.update(wrong).await,
        Code::InvalidArgument,
        "a wrong limit",
    )?;
    ensure!(settings(&room).await? == before);
    room.stop().await?;
    room.start().await?;
    ensure!(limit(&room.get().await?, "open_files") == Some(1000));
    ensure!(room.run("ulimit -n").await?.ok()? == "1000");
    Ok(())
}

/// Case H6: sandboxes with a live run, detached or with its stream open, are left alone while the idle policy sweeps one
/// beside them, though that one is looked at all the time.
#[tokio::test]
async fn case_h6_busy_is_not_swept_and_looking_is_not_busy() -> Result<()> {
    let daemon = Daemon::new().await?;
    let acquire = async |name: &str| {
        let request = pb::AcquireRequest {
            name: name.into(),
            idle: Some(idle(1, 3, 6)),
            ..Default::default()
        };
        daemon.api().acquire(request).await
    };
    let (detached, streamed) = (acquire("detached").await?, acquire("streamed").await?);
    let mut gone = detached.run("echo on; sleep 900").start().await?;
    gone.wait_for("on").await?;
    drop(gone);
    let mut open = streamed.run("echo on; sleep 900").start().await?;
    open.wait_for("on").await?;
    let unused = acquire("unused").await?;
    let survivor = unused.run("sleep 900 >/dev/null 2>&1 & echo $!").await?;
    survivor.exited(0)?;
    let mut seen = BTreeSet::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        ensure!(Instant::now() < deadline, "not swept; seen: {seen:?}");
        let all = daemon.api().list().await?;
        let Some(now) = all.into_iter().find(|sandbox| sandbox.name == "unused") else {
            break;
        };
        seen.insert(now.state);
        let frozen_or_stopped = matches!(now.state(), SandboxState::Frozen | SandboxState::Stopped);
        ensure!(
            !frozen_or_stopped || now.state_reason.contains("idle policy"),
            "{now:?}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ensure!(
        seen.contains(&(SandboxState::Frozen as i32))
            && seen.contains(&(SandboxState::Stopped as i32)),
        "{seen:?}"
    );
    for room in [&detached, &streamed] {
        let now = room.get().await?;
        ensure!(
            now.state() == SandboxState::Running && now.idle_for.is_none(),
            "{now:?}"
        );
    }
    Ok(())
}

/// A sandbox that its idle policy froze is frozen to the next daemon, and the first run thaws it.
#[tokio::test]
async fn case_h6_the_sweep_outlives_the_daemon_and_a_run_undoes_it() -> Result<()> {
    let mut daemon = Daemon::with_config("[idle]\nfreeze_after_seconds = 1\n").await?;
    let room = daemon.api().room("h6").await?;
    room.run("echo kept > file").await?.exited(0)?;
    let frozen = async || {
        until("it is frozen", SOON, || async {
            Ok((room.state().await? == SandboxState::Frozen).then_some(()))
        })
        .await
    };
    frozen().await?;
    daemon.kill9()?;
    daemon.start_again()?;
    reconnected(&daemon).await?;
    ensure!(room.state().await? == SandboxState::Frozen);
    ensure!(room.run("cat file").await?.ok()? == "kept");
    frozen().await
}

/// Case K2: acquire and delete of one name at the same time: whoever wins, the sandbox that acquire gave is either that which
/// was deleted, or a new one that the other's clean-up does not touch.
#[tokio::test]
async fn case_k2_acquire_races_delete() -> Result<()> {
    let daemon = Daemon::new().await?;
    let mut room = daemon.api().room("k2").await?;
    for round in 0..12 {
        room.run("echo old > file").await?.exited(0)?;
        let (acquired, deleted) = tokio::join!(daemon.api().room("k2"), room.delete());
        deleted?;
        let winner = acquired?;
        if winner.id() == room.id() {
            let gone = winner.get().await.err().context("it was deleted")?;
            ensure!(gone.code() == Code::NotFound, "{gone}");
            room = daemon.api().room("k2").await?;
            continue;
        }
        winner
            .run("test ! -e file && echo new > file")
            .await?
            .exited(0)?;
        until("the loser's files are gone", SOON, || async {
            let left = std::fs::read_dir(daemon.state_dir().join("trash"))?.count();
            Ok((left == 0).then_some(()))
        })
        .await?;
        ensure!(
            winner.run("cat file").await?.ok()? == "new",
            "round {round}"
        );
        room = winner;
    }
    Ok(())
}

/// Case F6: at the limit on processes the run that hits it fails with a message that names the limit, and another run gets a
/// clear answer: it works, or it is told of the limit and what to do.
#[tokio::test]
async fn case_f6_pids_limit_is_named() -> Result<()> {
    let daemon = Daemon::new().await?;
    let request = pb::AcquireRequest {
        name: "f6".into(),
        limits: Some(pb::Limits {
            pids: Some(24),
            ..Default::default()
        }),
        ..Default::default()
    };
    let room = daemon.api().acquire(request).await?;
    let script = "for i in $(seq 40); do sleep 1000 & done 2>&1; echo full; wait";
    let mut full = room.run(script).start().await?;
    let hit = room.run("for i in $(seq 40); do sleep 1000 & done; exit 3");
    full.wait_for("fork").await?;
    match hit.send().await {
        Ok(ran) => {
            ensure!(ran.code() != 0, "{}", ran.story());
            ensure!(
                ran.result.message.contains("pids limit of 24"),
                "{}",
                ran.story()
            );
        }
        Err(status) => told_of_the_limit(&status)?,
    }
    match room.run("echo here").send().await {
        Ok(ran) => ensure!(ran.code() != 0 || ran.text() == "here\n", "{}", ran.story()),
        Err(status) => told_of_the_limit(&status)?,
    }
    room.kill(&full.run_id).await?;
    for process in room.processes().await? {
        room.kill(&process.run_id).await?;
    }
    ensure!(room.run("echo here").await?.ok()? == "here");
    Ok(())
}

fn told_of_the_limit(status: &Status) -> Result<()> {
    ensure!(status.code() == Code::ResourceExhausted, "{status}");
    ensure!(reason(status) == "PIDS_LIMIT_REACHED", "{status}");
    Ok(())
}

/// Waits until calls reach the daemon that was started again.
async fn reconnected(daemon: &Daemon) -> Result<()> {
    until("the daemon answers", SOON, || async {
        Ok(daemon.api().health().await.ok())
    })
    .await
    .map(drop)
}

fn idle(freeze: i64, stop: i64, delete: i64) -> pb::IdlePolicy {
    pb::IdlePolicy {
        freeze_after: Some(seconds(freeze)),
        stop_after: Some(seconds(stop)),
        delete_after: Some(seconds(delete)),
    }
}

fn seconds(seconds: i64) -> prost_types::Duration {
    prost_types::Duration { seconds, nanos: 0 }
}

/// What the kernel holds of a limit.
fn limit(sandbox: &pb::Sandbox, name: &str) -> Option<i64> {
    let found = sandbox.limits.iter().find(|limit| limit.name == name);
    found.and_then(|limit| limit.effective)
}
