//! Case H6: the idle policy.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lodge_proto::v1::{self as pb, SandboxState};
use lodge_tests::daemon::Daemon;
use lodge_tests::wait::{SOON, until};

use crate::{policy, reconnected};

/// Case H6: sandboxes with a live run, detached or with its stream open, are left alone while the idle policy sweeps one
/// beside them, though that one is looked at all the time.
#[tokio::test]
async fn case_h6_busy_is_not_swept_and_looking_is_not_busy() -> Result<()> {
    let daemon = Daemon::new().await?;
    let acquire = async |name: &str| {
        let request = pb::AcquireRequest {
            name: name.into(),
            idle: Some(policy(1, 3, 6)),
            ..Default::default()
        };
        daemon.api().acquire(request).await
    };
    let (detached, streamed) = (acquire("detached").await?, acquire("streamed").await?);
    let mut gone = detached.run("echo on; sleep 900").start().await?;
    gone.wait_for("on").await?;
    drop(gone);
    let mut open = streamed.run("echo on; sleep 900").start().await?;
    open.wait_for("on").await?;
    let unused = acquire("unused").await?;
    let survivor = unused.run("sleep 900 >/dev/null 2>&1 & echo $!").await?;
    survivor.exited(0)?;
    let mut seen = BTreeSet::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        ensure!(Instant::now() < deadline, "not swept; seen: {seen:?}");
        let all = daemon.api().list().await?;
        let Some(now) = all.into_iter().find(|sandbox| sandbox.name == "unused") else {
            break;
        };
        seen.insert(now.state);
        let frozen_or_stopped = matches!(now.state(), SandboxState::Frozen | SandboxState::Stopped);
        ensure!(
            !frozen_or_stopped || now.state_reason.contains("idle policy"),
            "{now:?}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ensure!(
        seen.contains(&(SandboxState::Frozen as i32))
            && seen.contains(&(SandboxState::Stopped as i32)),
        "{seen:?}"
    );
    for room in [&detached, &streamed] {
        let now = room.get().await?;
        ensure!(
            now.state() == SandboxState::Running && now.idle_for.is_none(),
            "{now:?}"
        );
    }
    Ok(())
}

/// A sandbox that its idle policy froze is frozen to the next daemon, and the first run thaws it.
#[tokio::test]
async fn case_h6_the_sweep_outlives_the_daemon_and_a_run_undoes_it() -> Result<()> {
    let mut daemon = Daemon::with_config("[idle]\nfreeze_after_seconds = 1\n").await?;
    let room = daemon.api().room("h6").await?;
    room.run("echo kept > file").await?.exited(0)?;
    let frozen = async || {
        until("it is frozen", SOON, || async {
            Ok((room.state().await? == SandboxState::Frozen).then_some(()))
        })
        .await
    };
    frozen().await?;
    daemon.kill9()?;
    daemon.start_again()?;
    reconnected(&daemon).await?;
    ensure!(room.state().await? == SandboxState::Frozen);
    ensure!(room.run("cat file").await?.ok()? == "kept");
    frozen().await
}
