//! What is written down of runs: their journal and their logs.

use std::fs;

use anyhow::{Context, Result, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::arena::{canary, find_mention};
use lodge_tests::daemon::Daemon;
use lodge_tests::wait::{SOON, until};

use crate::{command_of, journal, written_down};

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
    written_down(&journal, "started", &live.run_id).await?;
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
