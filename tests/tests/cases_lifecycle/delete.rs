//! Cases H3 and K2: deleting.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lodge_proto::v1::SandboxState;
use lodge_tests::cgroup;
use lodge_tests::daemon::Daemon;
use lodge_tests::wait::{SOON, until};
use tokio::task::JoinSet;
use tonic::Code;

use crate::reconnected;

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
    let record = |id: &str| daemon.sandbox_dir(id).join("record.json");
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
