//! Watching sandboxes: what is told, to whom, and that it costs nobody anything.

use anyhow::{Context, Result, bail, ensure};
use lodge_client::{Client, SandboxEvent, SandboxEvents};
use lodge_proto::v1::{self as pb, SandboxState, sandbox_event::Event};
use lodge_tests::api::{Api, by_id};
use lodge_tests::daemon::Daemon;
use lodge_tests::wait::{SOON, until};
use lodge_tests::watcher::Watcher;
use tonic::Code;

/// Watchers at once, as the API has it.
const WATCHERS: usize = 256;

/// Whatever happens to a sandbox is told, in the order in which it happens; looking at it is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_is_told_of_create_run_stop_and_delete() -> Result<()> {
    let daemon = Daemon::new().await?;
    let api = daemon.api();
    let old = api.room("old").await?;
    let mut watcher = Watcher::synced(api).await?;
    let first = watcher.told.first();
    ensure!(
        matches!(first, Some(Event::Sandbox(sandbox)) if sandbox.id == old.id()),
        "{first:?}"
    );
    let room = api.room("new").await?;
    watcher
        .until_sandbox("the create", room.id(), |s| {
            s.state() == SandboxState::Running
        })
        .await?;
    let mut live = room
        .run("echo begun; read -r go")
        .start_with_stdin()
        .await?;
    live.wait_for("begun\n").await?;
    watcher
        .until_sandbox("the run's begin", room.id(), |s| s.live_runs == 1)
        .await?;
    live.write(b"go\n").await?;
    live.end().await?;
    watcher
        .until_sandbox("the run's end", room.id(), |s| s.live_runs == 0)
        .await?;
    room.stop().await?;
    watcher
        .until_sandbox("the stop", room.id(), |s| {
            s.state() == SandboxState::Stopped
        })
        .await?;
    room.delete().await?;
    watcher.until_deleted(room.id()).await?;
    let of_old = |event: &Event| matches!(event, Event::Sandbox(s) if s.id == old.id());
    ensure!(watcher.told.iter().filter(|event| of_old(event)).count() == 1);
    Ok(())
}

/// Pausing, resuming and changing are told; watching itself does not thaw.
#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_is_told_of_pause_update_and_resume() -> Result<()> {
    let daemon = Daemon::new().await?;
    let api = daemon.api();
    let room = api.room("paused").await?;
    let mut watcher = Watcher::synced(api).await?;
    room.pause().await?;
    watcher
        .until_sandbox("the pause", room.id(), |s| {
            s.state() == SandboxState::Frozen
        })
        .await?;
    let request = pb::UpdateSandboxRequest {
        set_labels: [("team".to_owned(), "red".to_owned())].into(),
        ..Default::default()
    };
    room.update(request).await?;
    watcher
        .until_sandbox("the update", room.id(), |s| {
            s.state() == SandboxState::Frozen && s.labels.contains_key("team")
        })
        .await?;
    room.resume().await?;
    watcher
        .until_sandbox("the resume", room.id(), |s| {
            s.state() == SandboxState::Running
        })
        .await?;
    Ok(())
}

/// Who watches one sandbox hears of no other, and its events end with the sandbox. One that there is not is NOT_FOUND.
#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_of_one_sandbox_ends_with_it() -> Result<()> {
    let daemon = Daemon::new().await?;
    let api = daemon.api();
    let request = |name: &str| pb::WatchSandboxesRequest {
        sandbox: Some(pb::SandboxRef {
            r#ref: Some(pb::sandbox_ref::Ref::Name(name.into())),
        }),
        ..Default::default()
    };
    let refused = Watcher::open(api, request("one")).await;
    ensure!(refused.is_err_and(|status| status.code() == Code::NotFound));
    let (one, other) = (api.room("one").await?, api.room("other").await?);
    let mut watcher = Watcher::open(api, request("one")).await?;
    other.stop().await?;
    one.delete().await?;
    watcher.until_deleted(one.id()).await?;
    ensure!(watcher.next().await??.is_none(), "the events go on");
    let stranger = |event: &Event| matches!(event, Event::Sandbox(s) if s.id != one.id());
    ensure!(!watcher.told.iter().any(stranger), "{:?}", watcher.told);
    Ok(())
}

/// A watcher that reads nothing holds up no call, and when it reads at last it gets the newest state of each sandbox.
#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_that_does_not_read_holds_up_nobody_and_misses_no_end() -> Result<()> {
    let daemon = Daemon::new().await?;
    let api = daemon.api();
    // On a connection of its own: one that is not read holds up what else is on it.
    let own = Api::new(&daemon.slot().home().join("lodged.sock"))?;
    // Large events: what the connection takes unread, 2 MiB, is twenty of them.
    let request = pb::AcquireRequest {
        name: "busy".into(),
        env: [("LARGE".to_owned(), "x".repeat(100_000))].into(),
        ..Default::default()
    };
    let room = api.acquire(request).await?;
    let mut watcher = Watcher::open(&own, pb::WatchSandboxesRequest::default()).await?;
    for _ in 0..50 {
        room.run("true").await?.exited(0)?;
    }
    let passing = api.room("passing").await?;
    passing.delete().await?;
    room.stop().await?;
    watcher
        .until_sandbox("the newest state", room.id(), |s| {
            s.state() == SandboxState::Stopped && s.live_runs == 0
        })
        .await?;
    // Each run was two changes at least.
    let told = watcher.told.len();
    ensure!(told < 50, "{told} events for a watcher that did not read");
    Ok(())
}

/// Looking wakes nothing: a stopped sandbox stays stopped, whoever watches, lists and measures it.
#[tokio::test(flavor = "multi_thread")]
async fn watching_listing_and_measuring_wake_nothing() -> Result<()> {
    let daemon = Daemon::new().await?;
    let api = daemon.api();
    let room = api.room("asleep").await?;
    room.stop().await?;
    let _watcher = Watcher::synced(api).await?;
    api.list().await?;
    let request = pb::SandboxStatsRequest {
        sandbox: by_id(room.id()),
    };
    let stats = api.sandboxes().stats(request).await?.into_inner();
    ensure!(stats.state() == SandboxState::Stopped);
    ensure!(room.get().await?.state() == SandboxState::Stopped);
    Ok(())
}

/// There are places for 256 watchers. One more is told so at once, and finds a place when another one goes.
#[tokio::test(flavor = "multi_thread")]
async fn watchers_beyond_the_bound_are_refused() -> Result<()> {
    let daemon = Daemon::new().await?;
    let api = daemon.api();
    let request = pb::WatchSandboxesRequest::default;
    let mut watchers = Vec::new();
    for _ in 0..WATCHERS {
        watchers.push(Watcher::open(api, request()).await?);
    }
    let refused = Watcher::open(api, request())
        .await
        .err()
        .context("accepted")?;
    ensure!(refused.code() == Code::ResourceExhausted, "{refused:?}");
    watchers.pop();
    until("a place is free", SOON, || async {
        Ok(Watcher::open(api, request()).await.ok())
    })
    .await?;
    Ok(())
}

/// Watchers do not hold up a daemon that ends: they are told UNAVAILABLE, and it has nothing to cut off.
#[tokio::test(flavor = "multi_thread")]
async fn watchers_are_told_that_the_daemon_ends() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let mut watcher = Watcher::synced(daemon.api()).await?;
    daemon.terminate()?;
    let status = watcher.next().await?.err().context("not told")?;
    ensure!(status.code() == Code::Unavailable, "{status:?}");
    let log = daemon.log_tail();
    ensure!(!log.contains("were cut"), "{log}");
    Ok(())
}

/// The client's events go on after a restart and after a kill: what is there is told again, and what happens then.
#[tokio::test(flavor = "multi_thread")]
async fn the_clients_events_go_on_over_a_restart_and_a_kill() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let client = Client::connect(daemon.endpoint()).await?;
    let sandbox = client.sandbox("stays").await?;
    let mut events = client.watch().await?;
    for round in 0..3 {
        let told = until_synced(&mut events).await?;
        ensure!(told == ["stays"], "round {round}: {told:?}");
        match round {
            0 => daemon.restart()?,
            1 => {
                daemon.kill9()?;
                daemon.start_again()?;
            }
            _ => {}
        }
    }
    sandbox.delete().await?;
    loop {
        match events.next().await.context("the events end")?? {
            SandboxEvent::Deleted { name, .. } => ensure!(name == "stays"),
            _ => continue,
        }
        return Ok(());
    }
}

/// Names of what is told before `Synced`, each once.
async fn until_synced(events: &mut SandboxEvents) -> Result<Vec<String>> {
    let mut names = Vec::new();
    loop {
        let next = tokio::time::timeout(SOON * 2, events.next()).await;
        match next.context("no event came")?.context("the events end")?? {
            SandboxEvent::Changed(sandbox) => names.push(sandbox.name),
            SandboxEvent::Synced => {
                names.dedup();
                return Ok(names);
            }
            other => bail!("{other:?}"),
        }
    }
}
