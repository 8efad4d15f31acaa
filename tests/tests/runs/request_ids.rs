//! A call that is made twice runs once (case K3).

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lodge_proto::v1::SandboxState;
use lodge_tests::api::reason;
use lodge_tests::daemon::Daemon;
use lodge_tests::room::{Command, Ran};
use tokio::task::JoinSet;
use tonic::Code;

use crate::lines;

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
