//! Attacks A06 and A08 to A12: the lifecycle's calls, many at once, twice, at the wrong time, and under a fork bomb.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lodge_proto::v1::{self as pb, EndReason, SandboxState};
use lodge_tests::api::{by_id, by_name, reason, refused};
use lodge_tests::arena::Arena;
use lodge_tests::cgroup;
use lodge_tests::daemon::Daemon;
use lodge_tests::room::Room;
use lodge_tests::wait::{SOON, until};
use tokio::task::JoinSet;
use tonic::{Code, Status};

/// Attack A08: a sandbox full of runs is gone within this time.
const GONE_WITHIN: Duration = Duration::from_secs(5);
/// Pauses in a row; `make soak` goes on for longer.
const PAUSES: u32 = 300;

/// A hundred callers create one name at once: one creates, all get the same sandbox, and none of the others left anything.
#[tokio::test(flavor = "multi_thread")]
async fn attack_a06_a_hundred_creates_of_one_name() -> Result<()> {
    let daemon = Daemon::new().await?;
    let mut calls = JoinSet::new();
    for _ in 0..100 {
        let api = daemon.api().clone();
        calls.spawn(async move {
            api.try_acquire(pb::AcquireRequest {
                name: "a06".into(),
                ..Default::default()
            })
            .await
        });
    }
    let (mut created, mut ids) = (0, std::collections::BTreeSet::new());
    while let Some(answer) = calls.join_next().await {
        let answer = answer??;
        created += u32::from(answer.created);
        ids.insert(answer.sandbox.context("a sandbox")?.id);
    }
    ensure!((created, ids.len()) == (1, 1), "{created} created {ids:?}");
    let directories = daemon.sandboxes_on_disk()?;
    ensure!(directories == 1, "{directories} directories");
    Ok(())
}

/// A delete while ten commands run: each ends as SANDBOX_STOPPED, all within five seconds, and nothing is left.
#[tokio::test(flavor = "multi_thread")]
async fn attack_a08_delete_under_ten_runs() -> Result<()> {
    let arena = Arena::new().await?;
    let mut runs = Vec::new();
    for _ in 0..10 {
        let mut live = arena
            .attacker
            .run("echo on; exec sleep 1000")
            .start()
            .await?;
        live.wait_for("on").await?;
        runs.push(live);
    }
    let begun = Instant::now();
    arena.attacker.delete().await?;
    for live in &mut runs {
        let result = live.end().await?;
        ensure!(
            result.end_reason() == EndReason::SandboxStopped,
            "{result:?}"
        );
    }
    ensure!(begun.elapsed() < GONE_WITHIN, "{:?}", begun.elapsed());
    arena.others_are_fine().await
}

/// A second delete, one of what never was, and one in the middle of a create: done or NOT_FOUND, and never anything else.
#[tokio::test(flavor = "multi_thread")]
async fn attack_a09_delete_twice_unknown_and_early() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("a09").await?;
    let (first, second) = tokio::join!(room.delete(), room.delete());
    gone(first)?;
    gone(second)?;
    refused(room.delete().await, Code::NotFound, "a third delete")?;
    let unknown = pb::DeleteSandboxRequest {
        sandbox: by_name("nobody"),
    };
    let unknown = daemon.api().sandboxes().delete(unknown).await;
    refused(unknown, Code::NotFound, "a delete of what never was")?;
    for _ in 0..10 {
        let early = pb::DeleteSandboxRequest {
            sandbox: by_name("early"),
        };
        let mut sandboxes = daemon.api().sandboxes();
        let (created, deleted) = tokio::join!(daemon.api().room("early"), sandboxes.delete(early));
        gone(deleted.map(drop))?;
        // The create came before the delete and was undone by it, or after it.
        if let Ok(created) = created {
            gone(created.delete().await)?;
        }
    }
    ensure!(daemon.api().list().await?.is_empty());
    Ok(())
}

fn gone(deleted: Result<(), Status>) -> Result<()> {
    match deleted {
        Ok(()) => Ok(()),
        Err(status) => {
            ensure!(status.code() == Code::NotFound, "{status}");
            Ok(())
        }
    }
}

/// A pause in the middle of a busy, talking command: it gets no processor time, its stream stays open, and after the resume
/// its output goes on without a gap.
#[tokio::test(flavor = "multi_thread")]
async fn attack_a10_pause_while_running() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("a10").await?;
    let script =
        "i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); [ $((i % 100)) = 0 ] && echo $i; done";
    let mut live = room.run(script).start().await?;
    live.wait_for("\n500\n").await?;
    room.pause().await?;
    let used = cpu_time(&room).await?;
    let frozen = Instant::now();
    until("it had time to run", SOON, || async {
        Ok((frozen.elapsed() > Duration::from_millis(500)).then_some(()))
    })
    .await?;
    ensure!(cpu_time(&room).await? == used, "it used processor time");
    ensure!(
        room.state().await? == SandboxState::Frozen,
        "looking thawed it"
    );
    room.resume().await?;
    // Pieces out of order or with a gap fail in here.
    let printed = String::from_utf8_lossy(&live.stdout).lines().count();
    live.wait_for(&format!("\n{}\n", (printed + 50) * 100))
        .await?;
    room.kill(&live.run_id).await?;
    live.end().await?;
    Ok(())
}

async fn cpu_time(room: &Room) -> Result<prost_types::Duration> {
    let request = pb::SandboxStatsRequest {
        sandbox: by_id(room.id()),
    };
    let stats = room.api().sandboxes().stats(request).await?.into_inner();
    stats.cpu_time.context("the host counts processor time")
}

/// Calls to a frozen sandbox: a run thaws it or, if told so, is refused with the reason; looking does neither; a run is
/// killed, and the sandbox deleted, as they are.
#[tokio::test(flavor = "multi_thread")]
async fn attack_a11_calls_to_a_frozen_sandbox() -> Result<()> {
    let arena = Arena::new().await?;
    let room = &arena.attacker;
    let mut live = room.run("echo on; exec sleep 1000").start().await?;
    live.wait_for("on").await?;
    room.pause().await?;
    let error = pb::ResumeMode::Error;
    let unthawed = room.run("true").with(|spec| spec.resume = error.into());
    let status = unthawed.send().await.err().context("it was thawed")?;
    ensure!(status.code() == Code::FailedPrecondition, "{status}");
    ensure!(reason(&status) == "SANDBOX_IS_FROZEN", "{status}");
    room.processes().await?;
    room.read_log(&live.run_id, pb::Stream::Stdout, 0, 10)
        .await?;
    ensure!(room.kill(&live.run_id).await? == 1, "not killed");
    ensure!(live.end().await?.end_reason() == EndReason::Cancelled);
    ensure!(
        room.state().await? == SandboxState::Frozen,
        "a look or a kill thawed it"
    );
    ensure!(room.run("echo thawed").await?.ok()? == "thawed");
    ensure!(room.state().await? == SandboxState::Running);
    let mut live = room.run("echo on; exec sleep 1000").start().await?;
    live.wait_for("on").await?;
    room.pause().await?;
    room.stop().await?;
    ensure!(live.end().await?.end_reason() == EndReason::SandboxStopped);
    refused(
        room.pause().await,
        Code::FailedPrecondition,
        "a pause of what is stopped",
    )?;
    refused(
        room.resume().await,
        Code::FailedPrecondition,
        "a resume of what is stopped",
    )?;
    room.start().await?;
    room.pause().await?;
    // The arena's last check deletes it as it is.
    arena.check().await
}

/// Hundreds of pauses and resumes, some of them twice, under a command that runs all the while.
#[tokio::test(flavor = "multi_thread")]
async fn attack_a12_hundreds_of_pauses() -> Result<()> {
    let arena = Arena::new().await?;
    let room = &arena.attacker;
    let mut live = room.run("echo on; exec sleep 1000").start().await?;
    live.wait_for("on").await?;
    ensure!(room.resume().await?.state() == SandboxState::Running);
    for round in 0..PAUSES {
        room.pause().await?;
        if round % 10 == 0 {
            let again = room.pause().await?;
            ensure!(again.reclaimed_bytes.is_none(), "it was frozen already");
        }
        room.resume().await?;
    }
    ensure!(room.get().await?.live_runs == 1);
    room.kill(&live.run_id).await?;
    arena.check().await
}

/// Pauses while a fork bomb goes off: each settles, or says that it did not and leaves the sandbox running.
#[tokio::test(flavor = "multi_thread")]
async fn attack_a12_pause_during_a_fork_bomb() -> Result<()> {
    let arena = Arena::with_limits(pb::Limits {
        pids: Some(256),
        cpu_millis: Some(1000),
        ..Default::default()
    })
    .await?;
    let room = &arena.attacker;
    let bomb = "echo on; b() { b | b & }; while :; do b; done 2>/dev/null";
    let mut live = room.run(bomb).start().await?;
    live.wait_for("on").await?;
    for _ in 0..20 {
        let state = match room.pause().await {
            Ok(paused) => paused.sandbox.context("a sandbox")?.state(),
            Err(status) => {
                ensure!(status.code() == Code::Aborted, "{status}");
                ensure!(reason(&status) == "FREEZE_DID_NOT_SETTLE", "{status}");
                ensure!(room.state().await? == SandboxState::Running);
                continue;
            }
        };
        ensure!(state == SandboxState::Frozen, "{state:?}");
        arena.others_are_fine().await?;
        room.resume().await?;
    }
    room.pause().await.ok();
    room.kill(&live.run_id).await?;
    arena.check().await
}

/// A daemon that was killed while it made a sandbox's groups leaves some of them: a delete takes these too, whichever they are.
#[tokio::test(flavor = "multi_thread")]
async fn delete_takes_groups_that_a_cut_start_left() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("a").await?;
    let made = cgroup::containing(&daemon.cgroup(), room.id())?;
    let tops = made.iter().filter(|group| group.ends_with(room.id()));
    let tops: Vec<_> = tops.cloned().collect();
    ensure!(!tops.is_empty(), "{made:?}");
    for left in 1..=tops.len() {
        let room = daemon.api().room("a").await?;
        room.stop().await?;
        ensure!(cgroup::containing(&daemon.cgroup(), room.id())?.is_empty());
        for top in &tops[..left] {
            fs::create_dir(top.with_file_name(room.id()))?;
        }
        room.delete().await?;
        let groups = cgroup::containing(&daemon.cgroup(), room.id())?;
        ensure!(groups.is_empty(), "{left} of {tops:?}: {groups:?}");
    }
    Ok(())
}
