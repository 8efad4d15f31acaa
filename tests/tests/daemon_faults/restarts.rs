//! Attacks D05, D26 and D27: daemons one after the other, two at once, and what an earlier one left.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixListener;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lodge_proto::v1::SandboxState;
use lodge_tests::binary;
use lodge_tests::cgroup;
use lodge_tests::daemon::{Daemon, command_without_route};
use lodge_tests::fake_holder::socket_of;
use lodge_tests::room::Room;
use lodge_tests::wait::{SOON, until};
use nix::sys::signal::Signal;
use tokio::task::JoinSet;

use crate::{signal, state};

/// Restarts of D05: each takes about a quarter of a second in a build for tests, and the test some 30 s.
const RESTARTS: usize = 60;

/// The runtime directory is wiped under a live daemon: clients find the socket again, sandboxes start, and those that run are
/// found by the next daemon.
#[tokio::test(flavor = "multi_thread")]
async fn wiped_runtime_directory_is_made_again() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("old").await?;
    let mut live = room.run("echo begun; sleep 300").start().await?;
    live.wait_for("begun").await?;
    fs::remove_dir_all(daemon.slot().home().join("run"))?;
    fs::remove_file(daemon.slot().home().join("lodged.sock"))?;
    let fresh = until("the socket is there again", SOON, || async {
        let api = lodge_tests::api::Api::new(&daemon.slot().home().join("lodged.sock"))?;
        Ok(api.health().await.is_ok().then_some(api))
    })
    .await?;
    let new = fresh.room("new").await?;
    ensure!(new.run("echo fine").await?.ok()? == "fine");
    let socket = socket_of(&room, &daemon);
    until("PID 1 has its socket again", SOON, || async {
        Ok(socket.exists().then_some(()))
    })
    .await?;
    daemon.kill9()?;
    daemon.start_again()?;
    ensure!(state(&room).await? == SandboxState::Running);
    ensure!(!room.processes_of(&live.run_id).await?.is_empty());
    daemon.stop()
}

/// A restart loop under load: no sandbox is lost or doubled, each has one PID 1, and nothing piles up.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d05_restart_loop_under_load() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let mut rooms = Vec::new();
    for n in 0..4 {
        rooms.push(daemon.api().room(&format!("loop-{n}")).await?);
    }
    let holders = holders(&rooms, &daemon)?;
    let mut load = JoinSet::new();
    for room in rooms.clone() {
        load.spawn(async move {
            loop {
                // Fails whenever the daemon is away.
                let _ = room
                    .run("echo x >> count; head -c 100000 /dev/zero")
                    .send()
                    .await;
                tokio::task::yield_now().await;
            }
        });
    }
    let begun = std::time::Instant::now();
    let mut restarts = 0;
    while restarts < RESTARTS && begun.elapsed() < Duration::from_secs(30) {
        if restarts % 4 == 0 {
            daemon.restart()?;
        } else {
            daemon.kill9()?;
            daemon.start_again()?;
        }
        restarts += 1;
    }
    load.shutdown().await;
    ensure!(restarts >= 10, "only {restarts} restarts");
    ensure!(daemon.api().list().await?.len() == rooms.len());
    ensure!(
        self::holders(&rooms, &daemon)? == holders,
        "a sandbox has another PID 1"
    );
    for room in &rooms {
        ensure!(room.run("echo fine").await?.ok()? == "fine");
    }
    let entries = daemon.sandboxes_on_disk()?;
    ensure!(entries == rooms.len(), "{entries} directories");
    let holders = fs::read_dir(daemon.slot().home().join("run/holders"))?.flatten();
    let sockets = holders
        .filter(|entry| entry.path().extension().is_some_and(|end| end == "sock"))
        .count();
    ensure!(sockets == rooms.len(), "{sockets} sockets");
    daemon.stop()
}

fn holders(rooms: &[Room], daemon: &Daemon) -> Result<BTreeSet<i32>> {
    rooms
        .iter()
        .map(|room| room.holder_pid(&daemon.cgroup()))
        .collect()
}

/// Two daemons that start on one state directory at the same time: one serves, the other says why it does not.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d26_two_daemons_race() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("raced").await?;
    for _ in 0..5 {
        daemon.terminate()?;
        let mut second = command_without_route(&binary::path("lodged")?);
        second.arg("--config").arg(daemon.config_file());
        second
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let second = second.spawn()?;
        let first = daemon.start_again();
        match first {
            Ok(()) => {
                let output = second.wait_with_output()?;
                let text = String::from_utf8_lossy(&output.stderr).into_owned();
                ensure!(
                    output.status.code() == Some(1) && text.contains("in use"),
                    "{text}"
                );
            }
            Err(refused) => {
                ensure!(
                    format!("{refused:#}").contains("ended before it was ready"),
                    "{refused:#}"
                );
                until("the winner serves", SOON, || async {
                    Ok(room.run("true").send().await.ok().map(drop))
                })
                .await?;
                signal(second.id().cast_signed(), Signal::SIGTERM)?;
                second.wait_with_output()?;
                daemon.forget_ended()?;
                daemon.start_again()?;
            }
        }
        ensure!(room.run("echo fine").await?.ok()? == "fine");
    }
    daemon.stop()
}

/// What an earlier daemon left and no sandbox has any more is swept if it carries this state directory's mark, and left alone if
/// it only looks like it: groups with the form of ours and processes in them, and files beside the sockets.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d27_residue_is_swept_by_mark_alone() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let kept = daemon.api().room("kept").await?;
    let lost = daemon.api().room("lost").await?;
    let mut live = lost.run("echo begun; sleep 300").start().await?;
    live.wait_for("begun").await?;
    daemon.kill9()?;
    // A sandbox without a record, as a create that was cut short leaves it.
    fs::remove_dir_all(daemon.sandbox_dir(lost.id()))?;
    // What others might have made in the same place.
    let parent = cgroup::trees(&daemon.cgroup())?
        .into_iter()
        .find(|tree| tree.join(kept.id()).join("cgroup.kill").exists())
        .context("the v2 group of all sandboxes")?;
    let stranger = parent.join("aaaaaaaaaaaaaaaaaaaa");
    fs::create_dir(&stranger)?;
    let mut sleeper = std::process::Command::new("sleep").arg("300").spawn()?;
    fs::write(stranger.join("cgroup.procs"), sleeper.id().to_string())?;
    let holders = daemon.slot().home().join("run/holders");
    let stale = holders.join("bbbbbbbbbbbbbbbbbbbb.sock");
    drop(UnixListener::bind(&stale)?);
    let strange = holders.join("notes.txt");
    fs::write(&strange, "precious")?;

    let started = daemon.start_again();
    let stranger_lives = sleeper.try_wait()?.is_none();
    let stranger_stays = stranger.is_dir();
    sleeper.kill()?;
    sleeper.wait()?;
    started?;
    ensure!(
        stranger_lives && stranger_stays,
        "another's group was swept"
    );
    ensure!(
        !parent.join(lost.id()).exists(),
        "the lost sandbox's group is there"
    );
    ensure!(
        !stale.exists() && strange.exists(),
        "sockets were not swept by their names"
    );
    ensure!(kept.run("echo fine").await?.ok()? == "fine");
    fs::remove_dir(&stranger)?;
    // The mark of another state directory is no better than none.
    daemon.kill9()?;
    fs::write(
        daemon.state_dir().join("owner"),
        "0123456789abcdef0123456789abcdef",
    )?;
    fs::remove_dir_all(daemon.sandbox_dir(kept.id()))?;
    daemon.start_again()?;
    ensure!(
        parent.join(kept.id()).exists(),
        "a group with another's mark was swept"
    );
    if daemon.api().list().await?.is_empty() {
        return daemon.stop();
    }
    bail!("a sandbox without a record is listed")
}
