//! What GetRun and ListRuns tell of live and ended runs, and of how many.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lodge_proto::v1::{self as pb, EndReason, SandboxState};
use lodge_tests::api::{by_id, reason};
use lodge_tests::daemon::Daemon;
use lodge_tests::host;
use lodge_tests::wait::{SOON, until};
use tokio::task::JoinSet;
use tonic::Code;

use crate::{command_of, journal, runs_dir, written_down};

fn is_run(run: &pb::RunInfo, n: usize) -> Result<()> {
    let result = run.result.as_ref().context("it has ended")?;
    let length = u64::try_from(format!("out {n}\n").len())?;
    let extent = run.stdout.context("an extent")?;
    ensure!(
        run.command == command_of(n)
            && result.end_reason() == EndReason::Exited
            && result.exit_code == i32::try_from(n % 200)?
            && result.run_id == run.run_id
            && result.stdout_bytes == length
            && (extent.total_bytes, extent.gap_from, extent.gap_to) == (length, 0, 0)
            && run.started_at.is_some()
            && run.ended_at.is_some(),
        "run {n}: {run:?}"
    );
    Ok(())
}

/// Ended runs are listed with their results, the newest first, and their logs are readable: after a kill of the daemon,
/// after a stop of the sandbox and after its next start. Looking at them wakes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn ended_runs_outlive_the_daemon_and_a_stop() -> Result<()> {
    const RUNS: usize = 25;
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("history").await?;
    for n in 0..RUNS {
        room.run(command_of(n)).await?;
    }
    let before = room.list_runs(0, false).await?;
    for (place, run) in before.iter().enumerate() {
        is_run(run, RUNS - 1 - place)?;
    }
    // A caller is answered before the end is written down, and of a short run PID 1 does not know the command.
    let last = &before.first().context("there are some")?.run_id;
    written_down(&journal(&daemon, &room), "ended", last).await?;
    daemon.kill9()?;
    daemon.start_again()?;
    ensure!(room.list_runs(7, false).await? == before);
    room.stop().await?;
    ensure!(room.list_runs(25, false).await? == before);
    daemon.restart()?;
    ensure!(room.list_runs(1000, false).await? == before);
    let oldest = before.last().context("there are some")?;
    ensure!(&room.get_run(&oldest.run_id).await? == oldest);
    ensure!(room.whole_log(&oldest.run_id, pb::Stream::Stderr).await? == b"err 0\n");
    ensure!(room.kill(&oldest.run_id).await? == 0);
    ensure!(room.list_runs(0, true).await?.is_empty());
    ensure!(
        room.get().await?.state() == SandboxState::Stopped,
        "it was woken"
    );
    room.run("true").await?.exited(0)?;
    ensure!(room.list_runs(0, false).await?[1..] == before[..]);
    Ok(())
}

/// A live run is listed as live, with what it was asked to do, before and after a kill of the daemon; bad pages are refused.
#[tokio::test(flavor = "multi_thread")]
async fn live_runs_are_listed_as_live() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("live").await?;
    room.run("true").await?;
    let mut live = room.run("echo begun\nsleep 300").start().await?;
    live.wait_for("begun\n").await?;
    let listed = room.list_runs(0, true).await?;
    ensure!(listed.len() == 1 && listed[0].run_id == live.run_id && listed[0].result.is_none());
    ensure!(listed[0].command == "echo begun sleep 300", "{listed:?}");
    let journal = journal(&daemon, &room);
    written_down(&journal, "started", &live.run_id).await?;
    daemon.kill9()?;
    daemon.start_again()?;
    ensure!(room.list_runs(0, true).await? == listed);
    ensure!(room.list_runs(1, false).await?.len() == 2);
    room.kill(&live.run_id).await?;
    let ended = room.ended_run(&live.run_id).await?;
    ensure!(ended.result.context("ended")?.end_reason() == EndReason::Cancelled);
    for (page_size, page_token) in [(-1, ""), (1001, ""), (0, "nonsense")] {
        let request = pb::ListRunsRequest {
            sandbox: by_id(room.id()),
            page_size,
            page_token: page_token.into(),
            ..Default::default()
        };
        let refused = daemon.api().exec().list_runs(request).await;
        ensure!(refused.is_err_and(|status| status.code() == Code::InvalidArgument));
    }
    let unknown = room.get_run("aaaaaaaaaaaaaaaaaaaa").await;
    ensure!(unknown.is_err_and(|status| reason(&status) == "RUN_NOT_FOUND"));
    Ok(())
}

/// A run that a stop of the sandbox ended says so, later and after a restart too.
#[tokio::test(flavor = "multi_thread")]
async fn runs_of_a_stopped_sandbox_say_that_it_was_stopped() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("stopped").await?;
    let mut live = room.run("echo begun; sleep 300").start().await?;
    live.wait_for("begun\n").await?;
    room.stop().await?;
    let ended = room.ended_run(&live.run_id).await?;
    let result = ended.result.clone().context("it has ended")?;
    ensure!(
        result.end_reason() == EndReason::SandboxStopped,
        "{result:?}"
    );
    let journal = journal(&daemon, &room);
    until("its end is written down", SOON, || async {
        let text = fs::read_to_string(&journal)?;
        Ok(text
            .lines()
            .any(|line| line.contains(&live.run_id) && line.contains("\"ended\""))
            .then_some(()))
    })
    .await?;
    daemon.kill9()?;
    daemon.start_again()?;
    ensure!(room.get_run(&live.run_id).await? == ended);
    Ok(())
}

/// A thousand ended runs are kept of a sandbox, and no more: the oldest goes, with its log.
#[tokio::test(flavor = "multi_thread")]
async fn thousand_ended_runs_are_kept() -> Result<()> {
    const KEPT: usize = 1_000;
    const AT_ONCE: usize = 50;
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("thousand").await?;
    let first = room.run("echo first").await?.result.run_id;
    let second = room
        .run("echo second")
        .request_id("second")
        .await?
        .result
        .run_id;
    let mut started = 2;
    while started < KEPT + 1 {
        let mut calls = JoinSet::new();
        for _ in 0..AT_ONCE.min(KEPT + 1 - started) {
            calls.spawn(room.argv(&["true"]).send());
            started += 1;
        }
        for ran in calls.join_all().await {
            ran?.exited(0)?;
        }
    }
    let gone = || async {
        let run = room.get_run(&first).await;
        Ok(run
            .is_err_and(|status| reason(&status) == "RUN_NOT_FOUND")
            .then_some(()))
    };
    until("the first one is gone", SOON, gone).await?;
    // Its log goes a moment after its name.
    let log = runs_dir(&daemon, &room).join(&first);
    until("its log is gone", SOON, || async {
        Ok((!log.exists()).then_some(()))
    })
    .await?;
    ensure!(room.list_runs(300, false).await?.len() == KEPT);
    ensure!(
        room.run("echo second")
            .request_id("second")
            .await?
            .result
            .run_id
            == second
    );
    daemon.kill9()?;
    daemon.start_again()?;
    ensure!(room.list_runs(1000, false).await?.len() == KEPT);
    ensure!(room.whole_log(&second, pb::Stream::Stdout).await? == b"second\n");
    Ok(())
}

/// A thousand runs at once in one sandbox: so many as may live do, the others are refused at once and by name, each that was
/// started ends well, and no descriptor of the daemon is lost.
#[tokio::test(flavor = "multi_thread")]
async fn attack_r28_thousand_runs_at_once() -> Result<()> {
    const RUNS: usize = 1_000;
    const LIVE_MAX: usize = 256;
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("r28").await?;
    room.run("true").await?.exited(0)?;
    let before = host::open_files(daemon.pid()?)?;
    let mut calls = JoinSet::new();
    for n in 0..RUNS {
        let script = format!("until [ -e go ]; do sleep 0.2; done; exit {}", n % 100);
        calls.spawn({
            let run = room.run(script).timeout(Duration::from_secs(300));
            async move { (n, run.send().await) }
        });
    }
    // Those that are refused come back while the others wait.
    let mut refused = 0;
    while refused < RUNS - LIVE_MAX {
        let (n, answer) = calls.join_next().await.context("calls are left")??;
        let status = answer
            .err()
            .with_context(|| format!("run {n} has ended before it may"))?;
        ensure!(
            status.code() == Code::ResourceExhausted && reason(&status) == "TOO_MANY_RUNS",
            "{status:?}"
        );
        refused += 1;
    }
    let live = room.list_runs(1000, true).await?;
    ensure!(live.len() == LIVE_MAX);
    // Its place is the one in which the others are let go.
    room.kill(&live[0].run_id).await?;
    room.run("touch go").await?.exited(0)?;
    let mut well = 0;
    while let Some(ended) = calls.join_next().await {
        let (n, answer) = ended?;
        let ran = answer?;
        if ran.result.run_id != live[0].run_id {
            ran.exited(i32::try_from(n % 100)?)?;
            well += 1;
        }
    }
    ensure!(well == LIVE_MAX - 1, "{well} ended");
    until("all descriptors are back", SOON, || async {
        Ok((host::open_files(daemon.pid()?)? <= before + 2).then_some(()))
    })
    .await?;
    ensure!(room.run("echo fine").await?.ok()? == "fine");
    Ok(())
}
