//! Caps of a tenant: what is beyond one is refused with the figures, nothing is left of it, and there is room again at once when
//! something goes. They outlive the daemon, since they are counted from what there is.

use anyhow::{Context, Result, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::arena::no_timeout;
use lodge_tests::daemon::Daemon;
use lodge_tests::room::Room;
use tokio::task::JoinSet;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

const MIB: i64 = 1 << 20;

/// Refused for this cap, with figures and a way out.
fn is_beyond(status: &Status, reason: &str, held: &str, max: &str) -> Result<()> {
    let details = status.get_error_details();
    let info = details.error_info().context("an ErrorInfo")?;
    let figure = |name: &str| info.metadata.get(name).map(String::as_str);
    ensure!(
        status.code() == Code::ResourceExhausted
            && info.reason == reason
            && figure("held") == Some(held)
            && figure("max") == Some(max),
        "{status:?} {info:?}"
    );
    Ok(())
}

async fn acquire(daemon: &Daemon, name: &str, limits: pb::Limits) -> Result<Room, Status> {
    let request = pb::AcquireRequest {
        name: name.into(),
        limits: Some(limits),
        ..Default::default()
    };
    let acquired = daemon.api().try_acquire(request).await?;
    let sandbox = acquired
        .sandbox
        .ok_or_else(|| Status::unknown("no sandbox"))?;
    Ok(Room::new(daemon.api().clone(), sandbox))
}

/// Of a burst of creates as many come through as there may be, and no more; a get of one that exists is no create; one that is deleted
/// makes room for the next at once, also after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn creates_beyond_the_cap_are_refused() -> Result<()> {
    let mut daemon = Daemon::with_config("[tenant]\nmax_sandboxes = 3").await?;
    let mut creates = JoinSet::new();
    for n in 0..20 {
        let api = daemon.api().clone();
        creates.spawn(async move {
            let request = pb::AcquireRequest {
                name: format!("s{n}"),
                ..Default::default()
            };
            api.try_acquire(request).await
        });
    }
    let mut names = Vec::new();
    while let Some(created) = creates.join_next().await {
        match created? {
            Ok(acquired) => names.push(acquired.sandbox.context("a sandbox")?.name),
            Err(status) => is_beyond(&status, "TENANT_SANDBOXES", "3", "3")?,
        }
    }
    ensure!(names.len() == 3, "{names:?}");
    for name in &names {
        acquire(&daemon, name, pb::Limits::default())
            .await?
            .run("true")
            .await?
            .exited(0)?;
    }
    for round in 0..5 {
        let refused = acquire(&daemon, "more", pb::Limits::default()).await;
        is_beyond(
            &refused.err().context("a fourth")?,
            "TENANT_SANDBOXES",
            "3",
            "3",
        )?;
        let room = acquire(&daemon, &names[0], pb::Limits::default()).await?;
        room.delete().await?;
        let next = format!("next-{round}");
        acquire(&daemon, &next, pb::Limits::default()).await?;
        names[0] = next;
        if round == 2 {
            daemon.restart()?;
        }
    }
    Ok(())
}

/// Sandboxes with processes, and the memory that they may have: a start, a create and an update are each refused beyond the cap. A stop
/// makes room, a pause does not.
#[tokio::test(flavor = "multi_thread")]
async fn running_sandboxes_and_their_memory_have_caps() -> Result<()> {
    let config = "[tenant]\nmax_running = 2\nmax_memory_bytes = 209715200";
    let mut daemon = Daemon::with_config(config).await?;
    let of = |mib: i64| pb::Limits {
        memory_bytes: Some(mib * MIB),
        ..Default::default()
    };
    let a = acquire(&daemon, "a", of(100)).await?;
    let refused = acquire(&daemon, "b", of(101)).await;
    is_beyond(
        &refused.err().context("beyond memory")?,
        "TENANT_MEMORY",
        "104857600",
        "209715200",
    )?;
    ensure!(
        daemon
            .api()
            .sandboxes()
            .list(pb::ListSandboxesRequest::default())
            .await?
            .into_inner()
            .sandboxes
            .len()
            == 1
    );
    let b = acquire(&daemon, "b", of(64)).await?;
    a.pause().await?;
    let refused = acquire(&daemon, "c", of(16)).await;
    is_beyond(
        &refused.err().context("a third")?,
        "TENANT_RUNNING",
        "2",
        "2",
    )?;
    daemon.restart()?;
    let raise = pb::UpdateSandboxRequest {
        limits: Some(of(101)),
        ..Default::default()
    };
    let refused = b.update(raise.clone()).await;
    is_beyond(
        &refused.err().context("raised")?,
        "TENANT_MEMORY",
        "104857600",
        "209715200",
    )?;
    a.stop().await?;
    b.update(raise).await?;
    let refused = a.start().await;
    is_beyond(
        &refused.err().context("started")?,
        "TENANT_MEMORY",
        "105906176",
        "209715200",
    )?;
    let refused = a.run("true").send().await;
    is_beyond(
        &refused.err().context("a run")?,
        "TENANT_MEMORY",
        "105906176",
        "209715200",
    )?;
    b.stop().await?;
    a.run("true").await?.exited(0)?;
    b.delete().await?;
    acquire(&daemon, "c", of(16)).await?;
    Ok(())
}

/// The sum of disk limits, whatever is used of them, and live runs.
#[tokio::test(flavor = "multi_thread")]
async fn disk_and_live_runs_have_caps() -> Result<()> {
    let config = "[tenant]\nmax_disk_bytes = 268435456\nmax_live_runs = 2";
    let mut daemon = Daemon::with_config(config).await?;
    let of = |mib: i64| pb::Limits {
        disk_bytes: Some(mib * MIB),
        ..Default::default()
    };
    let a = acquire(&daemon, "a", of(128)).await?;
    let refused = acquire(&daemon, "b", of(129)).await;
    is_beyond(
        &refused.err().context("beyond disk")?,
        "TENANT_DISK",
        "134217728",
        "268435456",
    )?;
    let b = acquire(&daemon, "b", of(128)).await?;
    a.stop().await?;
    let raise = pb::UpdateSandboxRequest {
        limits: Some(of(129)),
        ..Default::default()
    };
    let refused = a.update(raise).await;
    is_beyond(
        &refused.err().context("raised")?,
        "TENANT_DISK",
        "134217728",
        "268435456",
    )?;
    let first = a.run("sleep 100").with(no_timeout).start().await?;
    let _second = b.run("sleep 100").with(no_timeout).start().await?;
    daemon.restart()?;
    let refused = b.run("true").send().await;
    is_beyond(
        &refused.err().context("a third run")?,
        "TENANT_RUNS",
        "2",
        "2",
    )?;
    a.kill(&first.run_id).await?;
    a.ended_run(&first.run_id).await?;
    b.run("true").await?.exited(0)?;
    Ok(())
}
