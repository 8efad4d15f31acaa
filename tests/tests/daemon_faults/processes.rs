//! Attack D03: launchers and holders that are killed, stopped, cut off or broken.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use lodge_proto::v1::{EndReason, SandboxState};
use lodge_tests::cgroup;
use lodge_tests::daemon::Daemon;
use lodge_tests::fake_holder::{FakeHolder, Story, cut_in, socket_of};
use lodge_tests::host;
use lodge_tests::wait::{SOON, until};
use nix::sys::signal::Signal;
use tonic::Code;

use crate::{FOUND_OUT, launcher_of, signal, state};

/// What a launcher has that its sandboxes inherit: its limit on open files and how many it has open.
fn heritage(launcher: i32) -> Result<(String, usize)> {
    let limits = fs::read_to_string(format!("/proc/{launcher}/limits"))?;
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let environment = fs::read(format!("/proc/{launcher}/environ"))?;
    ensure!(environment.is_empty(), "the launcher has an environment");
    Ok((
        files.context("a limit on open files")?.to_owned(),
        host::open_files(launcher)?,
    ))
}

/// A launcher that is killed, as the OOM killer does, is replaced by one like it: sandboxes go on, and others start. A
/// launcher that is killed again and again keeps starts back for a while, and not for ever.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d03_killed_launcher_is_replaced() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("before").await?;
    let mut live = room
        .run("echo begun; until [ -e stop ]; do sleep 0.02; done; echo survived")
        .start()
        .await?;
    live.wait_for("begun").await?;
    let first = launcher_of(&daemon, None)?;
    let heritage_of_first = heritage(first)?;
    let mut last = first;
    for round in 0..4 {
        signal(last, Signal::SIGKILL)?;
        let next = daemon.api().room(&format!("after-{round}")).await?;
        ensure!(next.run("echo fine").await?.ok()? == "fine");
        last = launcher_of(&daemon, Some(last))?;
    }
    let heritage_of_last = heritage(last)?;
    ensure!(
        heritage_of_last == heritage_of_first,
        "{heritage_of_last:?} is not {heritage_of_first:?}"
    );
    ensure!(room.run("ulimit -Sn").await?.ok()? == "4096");
    room.run("touch stop").await?.exited(0)?;
    live.wait_for("survived").await?;
    live.end().await?;
    ensure!(
        host::children(daemon.pid()?)?.len() == 1,
        "a dead launcher was not reaped"
    );
    daemon.stop()
}

/// One PID 1 that is killed takes its own sandbox alone: its run is lost, its processes are gone, and its next run
/// starts it. The same for all of them at once, and a restart is not held up by any.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d03_killed_holders_take_only_their_own_sandboxes() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let mut rooms = Vec::new();
    for name in ["one", "two", "three"] {
        rooms.push(daemon.api().room(name).await?);
    }
    let mut lives = Vec::new();
    for room in &rooms {
        let mut live = room
            .run("setsid sleep 300 & echo begun; sleep 300")
            .start()
            .await?;
        live.wait_for("begun").await?;
        lives.push(live);
    }
    signal(rooms[0].holder_pid(&daemon.cgroup())?, Signal::SIGKILL)?;
    ensure!(lives[0].end().await?.end_reason() == EndReason::Lost);
    ensure!(state(&rooms[1]).await? == SandboxState::Running);
    ensure!(rooms[1].run("echo fine").await?.ok()? == "fine");

    for room in &rooms[1..] {
        signal(room.holder_pid(&daemon.cgroup())?, Signal::SIGKILL)?;
    }
    for live in &mut lives[1..] {
        ensure!(live.end().await?.end_reason() == EndReason::Lost);
    }
    until(
        "all are stopped, and nothing of them runs",
        SOON,
        || async {
            for room in &rooms {
                if state(room).await? != SandboxState::Stopped {
                    return Ok(None);
                }
            }
            Ok(cgroup::members(&daemon.cgroup())?.is_empty().then_some(()))
        },
    )
    .await?;
    for room in &rooms {
        ensure!(room.run("echo again").await?.ok()? == "again");
    }
    // And while no daemon is there.
    daemon.kill9()?;
    for room in &rooms {
        signal(room.holder_pid(&daemon.cgroup())?, Signal::SIGKILL)?;
    }
    daemon.start_again()?;
    for room in &rooms {
        ensure!(state(room).await? == SandboxState::Stopped);
        ensure!(room.run("echo again").await?.ok()? == "again");
    }
    daemon.stop()
}

/// The PID 1 of a paused sandbox is killed: its run is lost, nothing frozen stays, and its next run starts it.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d03_killed_holder_of_a_paused_sandbox() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("paused").await?;
    let mut live = room.run("echo begun; sleep 300").start().await?;
    live.wait_for("begun").await?;
    room.pause().await?;
    ensure!(state(&room).await? == SandboxState::Frozen);
    signal(room.holder_pid(&daemon.cgroup())?, Signal::SIGKILL)?;
    ensure!(live.end().await?.end_reason() == EndReason::Lost);
    until("nothing of it runs", SOON, || async {
        let gone = cgroup::members(&daemon.cgroup())?.is_empty();
        Ok((gone && state(&room).await? == SandboxState::Stopped).then_some(()))
    })
    .await?;
    ensure!(room.run("echo again").await?.ok()? == "again");
    daemon.stop()
}

/// A PID 1 that is stopped from the host keeps no call for ever: calls of its sandbox get an error that says so, others work,
/// it is all as before once it goes on, and it can be deleted while it is stopped.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d03_stopped_holder_hangs_no_call() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("stopped").await?;
    let neighbour = daemon.api().room("neighbour").await?;
    let pid = room.holder_pid(&daemon.cgroup())?;
    ensure!(room.run("echo fine").await?.ok()? == "fine");
    signal(pid, Signal::SIGSTOP)?;
    let waiting = tokio::time::timeout(FOUND_OUT, room.run("echo late").send()).await;
    unreachable_error(waiting.context("the call hangs")?.err())?;
    let refused = tokio::time::timeout(FOUND_OUT, room.run("echo later").send()).await;
    unreachable_error(refused.context("the next call hangs")?.err())?;
    ensure!(neighbour.run("echo fine").await?.ok()? == "fine");
    signal(pid, Signal::SIGCONT)?;
    until("it answers again", FOUND_OUT, || async {
        Ok(room.run("echo again").send().await.ok().map(drop))
    })
    .await?;
    signal(pid, Signal::SIGSTOP)?;
    room.delete().await?;
    ensure!(
        !Path::new(&format!("/proc/{pid}/cwd")).exists(),
        "PID 1 outlived its sandbox"
    );
    daemon.stop()
}

fn unreachable_error(error: Option<tonic::Status>) -> Result<()> {
    let error = error.context("it was answered")?;
    ensure!(
        error.code() == Code::Unavailable && error.message().contains("does not answer"),
        "{error:?}"
    );
    Ok(())
}

/// A connection to PID 1 that breaks is made again: a run that was under way gives its result, and new ones start.
#[tokio::test(flavor = "multi_thread")]
async fn broken_connection_to_pid_1_is_made_again() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("cut").await?;
    let holder = room.holder_pid(&daemon.cgroup())?;
    for _ in 0..3 {
        let mut live = room
            .run("echo begun; until [ -e go ]; do sleep 0.02; done; rm go; exit 7")
            .start()
            .await?;
        live.wait_for("begun").await?;
        drop(cut_in(&room, &daemon)?);
        until("a run is started on the new connection", SOON, || async {
            Ok(room.run("touch go").send().await.ok().map(drop))
        })
        .await?;
        ensure!(live.end().await?.exit_code == 7);
    }
    ensure!(
        room.holder_pid(&daemon.cgroup())? == holder,
        "PID 1 was ended"
    );
    daemon.stop()
}

/// A PID 1 that says what is no message is ended with its sandbox, whatever it says; the daemon and all others go on, and the
/// sandbox starts anew.
#[tokio::test(flavor = "multi_thread")]
async fn malformed_messages_end_that_sandbox_alone() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("liar").await?;
    let neighbour = daemon.api().room("neighbour").await?;
    for story in [Story::Garbage, Story::TooLong] {
        ensure!(room.run("echo fine").await?.ok()? == "fine");
        let socket = socket_of(&room, &daemon);
        daemon.kill9()?;
        let liar = FakeHolder::instead_of(&room, &daemon, story)?;
        daemon.start_again()?;
        until("the sandbox is stopped", SOON, || async {
            Ok((state(&room).await? == SandboxState::Stopped).then_some(()))
        })
        .await?;
        ensure!(neighbour.run("echo fine").await?.ok()? == "fine");
        drop(liar);
        let _ = fs::remove_file(socket);
    }
    ensure!(
        daemon.log_tail().contains("cannot be talked to"),
        "it is not in the log"
    );
    ensure!(room.run("echo fine").await?.ok()? == "fine");
    daemon.stop()
}
