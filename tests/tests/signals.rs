//! Attacks D21 and D22: signals to the daemon, and a log that cannot be written.

use std::fs;

use anyhow::{Context, Result, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::daemon::{Daemon, LogTo, Options};
use lodge_tests::wait::{SOON, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::task::JoinSet;

fn signal(daemon: &Daemon, signal: Signal) -> Result<()> {
    Ok(kill(Pid::from_raw(daemon.pid()?), signal)?)
}

/// A hundred SIGHUPs change nothing: neither for the daemon nor for the calls that go on meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d22_hangups_change_nothing() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("hangup").await?;
    let mut live = room
        .run("echo begun; until [ -e stop ]; do sleep 0.02; done")
        .start()
        .await?;
    live.wait_for("begun").await?;
    for n in 0..100 {
        signal(&daemon, Signal::SIGHUP)?;
        if n % 20 == 0 {
            ensure!(room.run("echo fine").await?.ok()? == "fine");
        }
    }
    room.run("touch stop").await?.exited(0)?;
    live.end().await?;
    ensure!(daemon.stop_status()?.success());
    Ok(())
}

/// SIGTERM lets calls end that are short, and cuts those that are not when its time is up; the run of a cut call goes on. A
/// hundred of them, one after the other over restarts, lose nothing.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d22_terms_drain() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("drain").await?;
    let script = "touch begun; until [ -e stop ]; do sleep 0.02; done; echo drained";
    let short = tokio::spawn(room.run(script).send());
    until("the short run has begun", SOON, || async {
        Ok(room.run("test -e begun").await?.exited(0).ok().map(drop))
    })
    .await?;
    let mut long = room
        .run("echo begun; read go; touch stop; sleep 300")
        .start_with_stdin()
        .await?;
    long.wait_for("begun").await?;
    let before = stops(&daemon)?;
    signal(&daemon, Signal::SIGTERM)?;
    until("it drains", SOON, || async {
        Ok((stops(&daemon)? > before).then_some(()))
    })
    .await?;
    long.write(b"go\n").await?;
    ensure!(daemon.ended()?.success(), "it did not end in good order");
    ensure!(short.await??.ok()? == "drained");
    ensure!(
        long.end().await.is_err(),
        "a stream that was cut looks like an end"
    );
    daemon.start_again()?;
    ensure!(
        !room.processes_of(&long.run_id).await?.is_empty(),
        "the run went with the call"
    );
    Ok(())
}

/// Whoever says it twice is heard at once: the second SIGTERM, or SIGINT, ends the daemon though calls go on.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d22_second_term_ends_at_once() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("twice").await?;
    for second in [Signal::SIGTERM, Signal::SIGINT] {
        let mut live = room.run("echo begun; sleep 300").start().await?;
        live.wait_for("begun").await?;
        let before = stops(&daemon)?;
        signal(&daemon, Signal::SIGTERM)?;
        until("it drains", SOON, || async {
            Ok((stops(&daemon)? > before).then_some(()))
        })
        .await?;
        let status = daemon.end_with(second)?;
        ensure!(
            status.code() == Some(1),
            "{status:?}: it drained to the end"
        );
        daemon.start_again()?;
        ensure!(
            room.kill(&live.run_id).await? >= 1,
            "the run went with the daemon"
        );
    }
    daemon.stop()
}

/// How often the daemon has begun to stop, by its log.
fn stops(daemon: &Daemon) -> Result<usize> {
    let log = fs::read_to_string(daemon.log_file())?;
    Ok(log.matches("stopping; sandboxes go on").count())
}

/// SIGTERM in the middle of creates: after the restart each sandbox is there as a whole, or is not there and can be made.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d22_term_during_creates() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    for round in 0..4 {
        let mut creates = JoinSet::new();
        for n in 0..6 {
            let api = daemon.api().clone();
            creates.spawn(async move {
                let request = pb::AcquireRequest {
                    name: format!("create-{round}-{n}"),
                    ..Default::default()
                };
                api.try_acquire(request).await
            });
        }
        creates.join_next().await.context("a create")???;
        ensure!(daemon.terminate()?.success());
        creates.shutdown().await;
        daemon.start_again()?;
        for sandbox in daemon.api().list().await? {
            let state = sandbox.state();
            ensure!(
                matches!(state, pb::SandboxState::Running | pb::SandboxState::Stopped),
                "{} is {state:?}: {}",
                sandbox.name,
                sandbox.state_reason
            );
        }
        for n in 0..6 {
            let room = daemon.api().room(&format!("create-{round}-{n}")).await?;
            ensure!(room.run("echo fine").await?.ok()? == "fine");
            room.delete().await?;
        }
    }
    ensure!(daemon.api().list().await?.is_empty());
    daemon.stop()
}

/// A log that cannot be written (its disk is full, its reader is gone or does not read, it was never there) keeps nothing from
/// working: much more is logged than a pipe holds.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d21_log_that_cannot_be_written() -> Result<()> {
    for log in [
        LogTo::FullDisk,
        LogTo::BlockedPipe,
        LogTo::BrokenPipe,
        LogTo::Closed,
    ] {
        let options = Options {
            log,
            config: "log_level = \"trace\"\n".into(),
            ..Options::default()
        };
        let mut daemon = Daemon::start(options).await?;
        let room = daemon.api().room("quiet").await?;
        for n in 0..20 {
            ensure!(
                room.run(format!("echo {n}")).await?.ok()? == n.to_string(),
                "{log:?}"
            );
        }
        ensure!(
            daemon.terminate()?.success(),
            "{log:?}: it does not end in good order"
        );
        daemon.start_again()?;
        ensure!(room.run("echo fine").await?.ok()? == "fine", "{log:?}");
        daemon.stop()?;
    }
    Ok(())
}
