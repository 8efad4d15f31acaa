//! Runs that have ended: they are known by GetRun and ListRuns, with their logs, after the daemon was killed and after the
//! sandbox was stopped, for as long as they are kept; and a call that is made twice runs once (case K3).

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lodge_proto::v1::{self as pb, EndReason, SandboxState};
use lodge_tests::api::{by_id, reason};
use lodge_tests::arena::{canary, find_mention};
use lodge_tests::daemon::Daemon;
use lodge_tests::room::{Command, Ran, Room};
use lodge_tests::wait::{SOON, until};
use tokio::task::JoinSet;
use tonic::Code;

async fn lines(room: &Room, file: &str) -> Result<usize> {
    Ok(room.run(format!("wc -l < {file}")).await?.ok()?.parse()?)
}

fn same(one: &Ran, other: &Ran) -> Result<()> {
    ensure!(
        one.result == other.result && one.out == other.out && one.err == other.err,
        "{}\nis not\n{}",
        one.story(),
        other.story()
    );
    Ok(())
}

/// A call that is made thirty times at once, and again later, runs once; everybody gets the same result and output.
#[tokio::test(flavor = "multi_thread")]
async fn case_k3_same_request_id_at_once_and_later_runs_once() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("k3").await?;
    let command = room
        .run("echo ran >> count; sleep 0.3; echo out; echo err >&2; exit 7")
        .request_id("the only one");
    let mut calls = JoinSet::new();
    for _ in 0..30 {
        calls.spawn(command.clone().send());
    }
    let all: Vec<Ran> = calls
        .join_all()
        .await
        .into_iter()
        .collect::<Result<_, _>>()?;
    ensure!(all.iter().filter(|ran| !ran.attached).count() == 1);
    all.iter().try_for_each(|ran| same(ran, &all[0]))?;
    all[0].exited(7)?;
    let later = command.clone().await?;
    ensure!(later.attached);
    same(&later, &all[0])?;
    ensure!(lines(&room, "count").await? == 1, "it ran more than once");
    let run = room.get_run(&later.result.run_id).await?;
    ensure!(run.request_id == "the only one", "{run:?}");

    // A stream of it begins at the beginning.
    let mut live = command.start().await?;
    ensure!(live.attached && live.run_id == later.result.run_id);
    let result = live.end().await?;
    ensure!(
        Some(&result) == run.result.as_ref() && live.stdout == b"out\n" && live.stderr == b"err\n"
    );
    Ok(())
}

/// The same after the daemon was killed: while the run lives, and when it has ended. In a stopped sandbox the answer
/// comes without waking it.
#[tokio::test(flavor = "multi_thread")]
async fn case_k3_same_request_id_after_a_kill_of_the_daemon() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("k3-kill").await?;
    let script =
        "echo ran >> count; echo begun; until [ -e go ]; do sleep 0.02; done; echo done; exit 5";
    let command = room
        .run(script)
        .request_id("r")
        .secret("S", "a secret value");
    let mut live = command.clone().start().await?;
    live.wait_for("begun\n").await?;
    daemon.kill9()?;
    daemon.start_again()?;
    let waiting = tokio::spawn(command.clone().send());
    room.run("touch go").await?.exited(0)?;
    let ran = waiting.await??;
    ensure!(
        ran.attached && ran.result.run_id == live.run_id,
        "{}",
        ran.story()
    );
    ensure!(ran.exited(5)?.text() == "begun\ndone\n");
    daemon.kill9()?;
    daemon.start_again()?;
    let again = command.clone().await?;
    same(&again, &ran)?;
    ensure!(lines(&room, "count").await? == 1, "it ran more than once");
    room.stop().await?;
    same(&command.clone().await?, &ran)?;
    daemon.kill9()?;
    daemon.start_again()?;
    same(&command.await?, &ran)?;
    ensure!(
        room.get().await?.state() == SandboxState::Stopped,
        "it was woken"
    );
    Ok(())
}

/// Another body with the same name is refused, whatever differs; another sandbox has names of its own; and a name is free
/// again if nothing was started for it.
#[tokio::test(flavor = "multi_thread")]
async fn case_k3_another_body_is_refused() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("k3-body").await?;
    let first = room
        .run("echo one")
        .request_id("r")
        .secret("S", "value one");
    first.clone().await?.exited(0)?;
    let others: Vec<(&str, Command)> = vec![
        (
            "command",
            room.run("echo two")
                .request_id("r")
                .secret("S", "value one"),
        ),
        ("variable", first.clone().env("A", "1")),
        ("no secret", room.run("echo one").request_id("r")),
        (
            "secret",
            room.run("echo one")
                .request_id("r")
                .secret("S", "value two"),
        ),
        ("directory", first.clone().cwd("/tmp")),
        ("input", first.clone().stdin("x")),
        ("timeout", first.clone().timeout(Duration::from_secs(7))),
    ];
    for restarted in [false, true] {
        for (what, other) in &others {
            let refused = other.clone().send().await.err().context("it was taken")?;
            ensure!(
                refused.code() == Code::AlreadyExists && reason(&refused) == "REQUEST_ID_REUSED",
                "{what} {restarted}: {refused:?}"
            );
        }
        ensure!(first.clone().await?.attached);
        daemon.kill9()?;
        daemon.start_again()?;
    }
    let neighbour = daemon.api().room("k3-neighbour").await?;
    ensure!(!neighbour.run("echo two").request_id("r").await?.attached);
    for id in ["x".repeat(129), "é".repeat(65)] {
        let refused = room.run("true").request_id(&id).send().await;
        let refused = refused.err().context("it was taken")?;
        ensure!(reason(&refused) == "INVALID_REQUEST_ID", "{refused:?}");
    }
    ensure!(
        !room
            .run("true")
            .request_id(&"x".repeat(128))
            .await?
            .attached
    );
    // Refused before anything was started: the name is not used up.
    let refused = room
        .run("true")
        .request_id("again")
        .cwd("relative")
        .send()
        .await;
    ensure!(refused.is_err());
    ensure!(!room.run("true").request_id("again").await?.attached);
    Ok(())
}

fn command_of(n: usize) -> String {
    format!("echo out {n}; echo err {n} >&2; exit {}", n % 200)
}

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
    until("it is written down that it lives", SOON, || async {
        Ok(fs::read_to_string(&journal)?
            .contains(&live.run_id)
            .then_some(()))
    })
    .await?;
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

fn journal(daemon: &Daemon, room: &Room) -> PathBuf {
    runs_dir(daemon, room).join("journal")
}

fn runs_dir(daemon: &Daemon, room: &Room) -> PathBuf {
    daemon
        .state_dir()
        .join("sandboxes")
        .join(room.id())
        .join("runs")
}

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

/// A torn end, zeros and noise in the journal cost the runs whose lines they were, and nothing else; what is damaged is not
/// thrown away, and the sandbox is as good as before.
#[tokio::test(flavor = "multi_thread")]
async fn damaged_journal_costs_no_other_run() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("torn").await?;
    for n in 0..6 {
        room.run(command_of(n)).await?;
    }
    let before = room.list_runs(0, false).await?;
    daemon.restart()?;
    daemon.kill9()?;
    let journal = journal(&daemon, &room);
    let text = fs::read(&journal)?;
    let mut lines: Vec<Vec<u8>> = text
        .split_inclusive(|b| *b == b'\n')
        .map(<[u8]>::to_vec)
        .collect();
    ensure!(lines.len() == 6, "{}", String::from_utf8_lossy(&text));
    lines[1].fill(0);
    lines.insert(3, b"foreign\n".to_vec());
    let last = lines.last_mut().context("there is one")?;
    last.truncate(last.len() / 2);
    let damaged = lines.concat();
    fs::write(&journal, &damaged)?;
    daemon.start_again()?;
    let whole: Vec<&pb::RunInfo> = before
        .iter()
        .enumerate()
        .filter(|(place, _)| ![0, 3, 4].contains(place))
        .map(|(_, run)| run)
        .collect();
    let listed = room.list_runs(0, false).await?;
    for run in &whole {
        ensure!(listed.contains(run), "{} is gone", run.command);
    }
    // Of the others the logs are left.
    for run in &before {
        ensure!(
            room.whole_log(&run.run_id, pb::Stream::Stdout)
                .await?
                .starts_with(b"out ")
        );
    }
    ensure!(
        fs::read(&journal)?.starts_with(&damaged),
        "what was damaged is gone"
    );
    room.run("exit 9").await?.exited(9)?;
    daemon.kill9()?;
    daemon.start_again()?;
    let newest = room.list_runs(0, false).await?.swap_remove(0);
    ensure!(newest.result.is_some_and(|result| result.exit_code == 9));
    room.delete().await?;
    Ok(())
}

/// Logs of ended runs go, the oldest first, when all logs together take more than they may; the live run's stay, and so do the
/// results. A whole line of output is never half there.
#[tokio::test(flavor = "multi_thread")]
async fn oldest_logs_go_when_all_take_too_much() -> Result<()> {
    let mut daemon = Daemon::with_config("[run_logs]\nmax_bytes = 1048576\n").await?;
    let [one, two] = ["quota-one", "quota-two"].map(|name| (daemon.api().clone(), name));
    let (one, two) = (one.0.room(one.1).await?, two.0.room(two.1).await?);
    let mut live = one
        .run("head -c 400000 /dev/zero | tr '\\0' l; echo; echo begun; sleep 300")
        .start()
        .await?;
    live.wait_for("begun\n").await?;
    let mut ended = Vec::new();
    for n in 0..6 {
        let room = if n % 2 == 0 { &one } else { &two };
        let ran = room.run("head -c 200000 /dev/zero | tr '\\0' x").await?;
        ran.exited(0)?;
        ended.push((room.clone(), ran.result));
    }
    let gone = |run: pb::RunInfo| run.stdout.is_some_and(|extent| extent.gap_to > 0);
    until("the oldest logs are gone", SOON, || async {
        let mut gone_now = Vec::new();
        for (room, result) in &ended {
            gone_now.push(gone(room.get_run(&result.run_id).await?));
        }
        Ok((gone_now == [true, true, true, false, false, false]).then_some(()))
    })
    .await?;
    daemon.kill9()?;
    daemon.start_again()?;
    for (place, (room, result)) in ended.iter().enumerate() {
        let run = room.get_run(&result.run_id).await?;
        ensure!(run.result.as_ref() == Some(result), "{run:?}");
        let extent = run.stdout.context("an extent")?;
        let expected = if place < 3 { (0, 200_000) } else { (0, 0) };
        ensure!(
            (extent.gap_from, extent.gap_to) == expected,
            "{place}: {extent:?}"
        );
        let read = room
            .read_log(&result.run_id, pb::Stream::Stdout, 0, 10)
            .await?;
        ensure!(
            read.data.is_empty() == (place < 3) && read.total_bytes == 200_000,
            "{read:?}"
        );
    }
    let log = one.whole_log(&live.run_id, pb::Stream::Stdout).await?;
    ensure!(
        log.ends_with(b"l\nbegun\n") && log.len() > 400_000,
        "the live run's log is cut"
    );
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
    let descriptors =
        || -> Result<usize> { Ok(fs::read_dir(format!("/proc/{}/fd", daemon.pid()?))?.count()) };
    let before = descriptors()?;
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
        Ok((descriptors()? <= before + 2).then_some(()))
    })
    .await?;
    ensure!(room.run("echo fine").await?.ok()? == "fine");
    Ok(())
}

/// Neither what is written down of runs nor what the API says of them has a value of a secret, wherever in the call it was;
/// and the hash of a call's body is of no use without the node's key.
#[tokio::test(flavor = "multi_thread")]
async fn attack_l06_secret_in_what_is_written_down_of_runs() -> Result<()> {
    let mut daemon = Daemon::with_config("log_level = \"trace\"").await?;
    let room = daemon.api().room("l06-runs").await?;
    let secret = canary()?;
    let commands = [
        room.run(format!("echo {secret}; sleep 0.3"))
            .request_id("one"),
        room.argv(&["echo", &secret]),
        room.argv(&[&format!("/no/{secret}")]).request_id("two"),
        room.run(format!("{}{secret}", "# ".repeat(118)))
            .request_id("three"),
        room.run("echo fine").cwd(&format!("/{secret}")),
    ];
    for command in commands {
        command.secret("S", &secret).send().await?;
    }
    let mut live = room
        .run(format!("echo begun; : {secret}; sleep 300"))
        .secret("S", &secret)
        .start()
        .await?;
    live.wait_for("begun\n").await?;
    let journal = journal(&daemon, &room);
    until("it is written down that it lives", SOON, || async {
        Ok(fs::read_to_string(&journal)?
            .contains(&live.run_id)
            .then_some(()))
    })
    .await?;
    daemon.kill9()?;
    daemon.start_again()?;
    let listed = format!("{:?}", room.list_runs(0, false).await?);
    ensure!(
        listed.contains("«S»") && !listed.contains(&secret),
        "{listed}"
    );
    ensure!(fs::read_to_string(&journal)?.contains("«S»"));
    let mentioned = find_mention(daemon.slot().state(), &secret)?;
    ensure!(mentioned.is_none(), "{mentioned:?} has the secret");
    let log = fs::read_to_string(daemon.log_file())?;
    ensure!(!log.contains(&secret), "the daemon's log has the secret");
    Ok(())
}
