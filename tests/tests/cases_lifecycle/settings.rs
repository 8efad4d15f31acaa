//! Cases H5 and F6: limits, labels and policy, and what is told of them.

use anyhow::{Context, Result, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::api::{reason, refused};
use lodge_tests::daemon::Daemon;
use lodge_tests::room::Room;
use tonic::{Code, Status};

use crate::{limit, policy, reconnected, seconds};

/// A limit below what is used is refused, with the reason, and nothing is killed for it; without what used it, it holds.
#[tokio::test]
async fn case_h5_memory_in_use_is_not_taken() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("h5-memory").await?;
    let program = "import time; x = b'x' * (96 << 20); print('on', flush=True); time.sleep(1000)";
    let mut live = room.python(program).start().await?;
    live.wait_for("on").await?;
    let change = pb::UpdateSandboxRequest {
        limits: Some(pb::Limits {
            memory_bytes: Some(32 << 20),
            ..Default::default()
        }),
        ..Default::default()
    };
    let status = room
        .update(change.clone())
        .await
        .err()
        .context("it took it")?;
    ensure!(reason(&status) == "MEMORY_IN_USE", "{status}");
    ensure!(limit(&room.get().await?, "memory_bytes") == Some(2 << 30));
    ensure!(room.kill(&live.run_id).await? == 1, "it was killed before");
    ensure!(limit(&room.update(change).await?, "memory_bytes") == Some(32 << 20));
    Ok(())
}

/// Case H5: policy, limits and labels are what they were set to, by acquire or by update, after a stop, a start, another
/// acquire and a restart of the daemon.
#[tokio::test]
async fn case_h5_what_was_set_stays() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let request = pb::AcquireRequest {
        name: "h5".into(),
        labels: [("team".into(), "a".into()), ("old".into(), "x".into())].into(),
        limits: Some(pb::Limits {
            pids: Some(100),
            ..Default::default()
        }),
        idle: Some(policy(3600, 7200, 0)),
        ..Default::default()
    };
    let room = daemon.api().acquire(request).await?;
    let created = room.get().await?;
    ensure!(
        created.idle == Some(policy(3600, 7200, 0)),
        "{:?}",
        created.idle
    );
    stays(&mut daemon, &room).await?;
    let change = pb::UpdateSandboxRequest {
        limits: Some(pb::Limits {
            pids: Some(200),
            memory_bytes: Some(512 << 20),
            ..Default::default()
        }),
        idle: Some(pb::IdlePolicy {
            delete_after: Some(seconds(86_400)),
            ..Default::default()
        }),
        set_labels: [("team".into(), "b".into())].into(),
        remove_labels: vec!["old".into()],
        ..Default::default()
    };
    let changed = room.update(change).await?;
    ensure!(
        changed.idle == Some(policy(3600, 7200, 86_400)),
        "{:?}",
        changed.idle
    );
    ensure!(changed.labels == [("team".to_owned(), "b".to_owned())].into());
    ensure!(
        limit(&changed, "pids") == Some(200) && limit(&changed, "memory_bytes") == Some(512 << 20)
    );
    stays(&mut daemon, &room).await
}

/// Goes through everything that must not change it.
async fn stays(daemon: &mut Daemon, room: &Room) -> Result<()> {
    let before = settings(room).await?;
    room.stop().await?;
    ensure!(settings(room).await? == before, "after a stop");
    room.start().await?;
    ensure!(settings(room).await? == before, "after a start");
    daemon.api().room(&room.info().name).await?;
    ensure!(settings(room).await? == before, "after an acquire");
    daemon.restart()?;
    reconnected(daemon).await?;
    ensure!(settings(room).await? == before, "after a restart");
    Ok(())
}

type Settings = (
    Option<pb::IdlePolicy>,
    std::collections::HashMap<String, String>,
    Vec<pb::LimitStatus>,
);

async fn settings(room: &Room) -> Result<Settings> {
    let now = room.get().await?;
    Ok((now.idle, now.labels, now.limits))
}

/// Limits that the kernel can change while commands run hold at once; the others are told as they are until the next start.
/// A change of which one thing is wrong changes nothing.
#[tokio::test]
async fn case_h5_limits_change_live_or_say_so() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("h5-live").await?;
    let change = |limits| pb::UpdateSandboxRequest {
        limits: Some(limits),
        ..Default::default()
    };
    let changed = room
        .update(change(pb::Limits {
            pids: Some(64),
            open_files: Some(1000),
            ..Default::default()
        }))
        .await?;
    ensure!(limit(&changed, "pids") == Some(64));
    ensure!(
        limit(&changed, "open_files") == Some(4096),
        "it holds from the next start on"
    );
    ensure!(room.run("ulimit -n").await?.ok()? == "4096");
    daemon.restart()?;
    reconnected(&daemon).await?;
    ensure!(
        limit(&room.get().await?, "open_files") == Some(4096),
        "the next daemon knows it too"
    );
    let wrong = pb::UpdateSandboxRequest {
        limits: Some(pb::Limits {
            memory_bytes: Some(256 << 20),
            cpu_millis: Some(1),
            ..Default::default()
        }),
        set_labels: [("a".into(), "b".into())].into(),
        ..Default::default()
    };
    let before = settings(&room).await?;
    refused(
        room.update(wrong).await,
        Code::InvalidArgument,
        "a wrong limit",
    )?;
    ensure!(settings(&room).await? == before);
    room.stop().await?;
    room.start().await?;
    ensure!(limit(&room.get().await?, "open_files") == Some(1000));
    ensure!(room.run("ulimit -n").await?.ok()? == "1000");
    Ok(())
}

/// Case F6: at the limit on processes the run that hits it fails with a message that names the limit, and another run gets a
/// clear answer: it works, or it is told of the limit and what to do.
#[tokio::test]
async fn case_f6_pids_limit_is_named() -> Result<()> {
    let daemon = Daemon::new().await?;
    let request = pb::AcquireRequest {
        name: "f6".into(),
        limits: Some(pb::Limits {
            pids: Some(24),
            ..Default::default()
        }),
        ..Default::default()
    };
    let room = daemon.api().acquire(request).await?;
    let script = "for i in $(seq 40); do sleep 1000 & done 2>&1; echo full; wait";
    let mut full = room.run(script).start().await?;
    let hit = room.run("for i in $(seq 40); do sleep 1000 & done; exit 3");
    full.wait_for("fork").await?;
    match hit.send().await {
        Ok(ran) => {
            ensure!(ran.code() != 0, "{}", ran.story());
            ensure!(
                ran.result.message.contains("pids limit of 24"),
                "{}",
                ran.story()
            );
        }
        Err(status) => told_of_the_limit(&status)?,
    }
    match room.run("echo here").send().await {
        Ok(ran) => ensure!(ran.code() != 0 || ran.text() == "here\n", "{}", ran.story()),
        Err(status) => told_of_the_limit(&status)?,
    }
    room.kill(&full.run_id).await?;
    for process in room.processes().await? {
        room.kill(&process.run_id).await?;
    }
    ensure!(room.run("echo here").await?.ok()? == "here");
    Ok(())
}

fn told_of_the_limit(status: &Status) -> Result<()> {
    ensure!(status.code() == Code::ResourceExhausted, "{status}");
    ensure!(reason(status) == "PIDS_LIMIT_REACHED", "{status}");
    Ok(())
}
