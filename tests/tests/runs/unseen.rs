//! Runs that end while no daemon is there.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lodge_proto::v1::{self as pb, EndReason, SandboxState};
use lodge_tests::daemon::Daemon;
use lodge_tests::wait::{SOON, until};

use crate::journal;

/// Fails unless run `n` has exited with its own code and has written every number once, in order.
fn counted_to_its_end(n: usize, ended: pb::RunInfo, log: &str) -> Result<()> {
    let result = ended.result.context("it has ended")?;
    let expected = i32::try_from(n + 1)?;
    ensure!(
        result.end_reason() == EndReason::Exited && result.exit_code == expected,
        "run {n}: {result:?}"
    );
    ensure!(result.stdout_bytes == u64::try_from(log.len())?);
    let mut lines = log.lines();
    let last = lines.next_back().context("it wrote something")?;
    let numbers: Vec<&str> = lines.collect();
    ensure!(
        last == format!("end {}", numbers.len()),
        "run {n} ends with {last:?}"
    );
    ensure!(
        numbers
            .iter()
            .enumerate()
            .all(|(i, line)| *line == i.to_string()),
        "run {n} has other lines"
    );
    Ok(())
}

/// Kill -9 of the daemon while twenty runs stream: all go on, all are listed, and every exit code, reason and byte is exact,
/// also of those that ended while no daemon was there.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d01_kill_9_while_twenty_runs_stream() -> Result<()> {
    const RUNS: usize = 20;
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("d01").await?;
    let mut live = Vec::new();
    for n in 0..RUNS {
        // Half of them end while the daemon is dead.
        let gate = if n % 2 == 0 { "early" } else { "late" };
        let script = format!(
            "i=0; until [ -e {gate} ]; do echo \"$i\"; i=$((i + 1)); sleep 0.01; done; echo \"end $i\"; exit {}",
            n + 1
        );
        let mut run = room.run(script).start().await?;
        run.wait_for("5\n").await?;
        live.push(run);
    }
    // Its standard input ends with the daemon that has the other end.
    let early = room.run("cat; touch early").start_with_stdin().await?;
    let journal = journal(&daemon, &room);
    until("all are written down as live", SOON, || async {
        let text = fs::read_to_string(&journal).unwrap_or_default();
        Ok(live
            .iter()
            .all(|run| text.contains(&run.run_id))
            .then_some(()))
    })
    .await?;
    let base = daemon.cgroup();
    daemon.kill9()?;
    until("half of them have ended", SOON, || async {
        for run in live.iter().step_by(2) {
            for group in lodge_tests::cgroup::containing(&base, &run.run_id)? {
                if fs::read_to_string(group.join("cgroup.procs")).is_ok_and(|pids| !pids.is_empty())
                {
                    return Ok(None);
                }
            }
        }
        Ok(Some(()))
    })
    .await?;
    daemon.start_again()?;
    let listed = room.list_runs(9, false).await?;
    for run in live.iter().chain([&early]) {
        ensure!(
            listed.iter().any(|one| one.run_id == run.run_id),
            "{} is not listed",
            run.run_id
        );
    }
    room.ended_run(&early.run_id).await?;
    room.run("touch late").await?.exited(0)?;
    for (n, run) in live.iter().enumerate() {
        let ended = room.ended_run(&run.run_id).await?;
        let log = room.whole_log(&run.run_id, pb::Stream::Stdout).await?;
        counted_to_its_end(n, ended, &String::from_utf8(log)?)?;
    }
    daemon.kill9()?;
    daemon.start_again()?;
    let codes: Vec<i32> = room
        .list_runs(0, false)
        .await?
        .iter()
        .filter_map(|run| Some(run.result.as_ref()?.exit_code))
        .collect();
    ensure!((1..=20).all(|code| codes.contains(&code)), "{codes:?}");
    Ok(())
}

/// A deadline that passes while no daemon is there: the run's result says so.
#[tokio::test(flavor = "multi_thread")]
async fn case_a7_result_of_a_deadline_that_passed_while_the_daemon_was_dead() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("a7-result").await?;
    let command = room
        .run("echo begun; setsid sleep 300 & sleep 300")
        .request_id("r");
    let command = command.timeout(Duration::from_secs(1));
    let mut live = command.clone().start().await?;
    live.wait_for("begun\n").await?;
    daemon.kill9()?;
    daemon.start_again()?;
    let ended = room.ended_run(&live.run_id).await?;
    let result = ended.result.context("it has ended")?;
    ensure!(
        result.end_reason() == EndReason::TimedOut && result.exit_code == 124,
        "{result:?}"
    );
    let again = command.await?;
    ensure!(again.attached && again.result == result && again.text() == "begun\n");
    Ok(())
}

/// PID 1 of a sandbox dies while no daemon is there: its live runs are lost, and listed as that, with what they wrote. What
/// had ended before keeps its result. The name of a lost call is not run again.
#[tokio::test(flavor = "multi_thread")]
async fn runs_of_a_holder_that_died_unseen_are_lost_and_listed() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("lost").await?;
    room.run("exit 3").await?;
    let before = room.list_runs(0, false).await?;
    let command = room.run("echo begun; sleep 300").request_id("r");
    let mut named = command.clone().start().await?;
    named.wait_for("begun\n").await?;
    let mut plain = room.run("echo too; sleep 300").start().await?;
    plain.wait_for("too\n").await?;
    let holder = room.holder_pid(&daemon.cgroup())?;
    daemon.kill9()?;
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(holder),
        nix::sys::signal::Signal::SIGKILL,
    )?;
    daemon.start_again()?;
    ensure!(room.get().await?.state() == SandboxState::Stopped);
    for (run, log) in [(&named, &b"begun\n"[..]), (&plain, b"too\n")] {
        let lost = room
            .get_run(&run.run_id)
            .await?
            .result
            .context("it has ended")?;
        ensure!(
            lost.end_reason() == EndReason::Lost && lost.exit_code == -1,
            "{lost:?}"
        );
        ensure!(room.whole_log(&run.run_id, pb::Stream::Stdout).await? == log);
    }
    let listed = room.list_runs(0, false).await?;
    ensure!(listed.len() == 3 && listed[2] == before[0], "{listed:?}");
    let again = command.await?;
    ensure!(
        again.attached && again.reason() == EndReason::Lost,
        "{}",
        again.story()
    );
    ensure!(
        room.get().await?.state() == SandboxState::Stopped,
        "it was woken"
    );
    Ok(())
}
