//! What `Stats` says is what the kernel counts, of the sandbox as a whole and of nothing else.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lodge_proto::v1::{self as pb, EndReason, SandboxState};
use lodge_tests::api::by_id;
use lodge_tests::daemon::Daemon;
use lodge_tests::room::Room;
use lodge_tests::wait::{SOON, until};

const MIB: u64 = 1 << 20;

async fn stats(room: &Room) -> Result<pb::SandboxStats> {
    let request = pb::SandboxStatsRequest {
        sandbox: by_id(room.id()),
    };
    Ok(room.api().sandboxes().stats(request).await?.into_inner())
}

async fn small_room(daemon: &Daemon) -> Result<Room> {
    let request = pb::AcquireRequest {
        name: "small".into(),
        limits: Some(pb::Limits {
            memory_bytes: Some(256 << 20),
            pids: Some(100),
            ..Default::default()
        }),
        ..Default::default()
    };
    daemon.api().acquire(request).await
}

/// A process that holds 64 MiB is seen while it holds them, and its peak is kept; three that sleep are three; one that
/// wants more than there is, is a kill.
#[tokio::test(flavor = "multi_thread")]
async fn stats_tell_what_the_runs_use_together() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = small_room(&daemon).await?;
    let empty = stats(&room).await?;
    ensure!(
        empty.state() == SandboxState::Running && empty.pids == Some(0),
        "{empty:?}"
    );
    ensure!(empty.memory_limit_bytes == Some(256 * MIB) && empty.pids_limit == Some(100));

    let hold = "import sys; held = b'x' * (64 << 20); print('held', flush=True); sys.stdin.read()";
    let mut live = room.python(hold).start_with_stdin().await?;
    live.wait_for("held\n").await?;
    let held = stats(&room).await?;
    ensure!(
        held.memory_bytes
            .is_some_and(|bytes| (64 * MIB..128 * MIB).contains(&bytes)),
        "{held:?}"
    );
    ensure!(
        (held.live_runs, held.open_streams) == (1, 1) && held.pids == Some(1),
        "{held:?}"
    );
    live.close_stdin().await?;
    live.end().await?;
    let after = stats(&room).await?;
    ensure!(
        after.memory_bytes < held.memory_bytes && after.memory_peak_bytes >= held.memory_bytes,
        "{after:?}"
    );

    room.run("for i in 1 2 3; do sleep 300 </dev/null >/dev/null 2>&1 & done")
        .await?
        .exited(0)?;
    let sleeping = stats(&room).await?;
    ensure!(
        sleeping.pids == Some(3) && sleeping.live_runs == 0,
        "{sleeping:?}"
    );

    let ran = room.run("exec tail /dev/zero").await?;
    ensure!(ran.reason() == EndReason::OomKilled, "{}", ran.story());
    let starved = stats(&room).await?;
    ensure!(
        starved.oom_kills.is_some_and(|kills| kills >= 1),
        "{starved:?}"
    );
    ensure!(starved.kept_runs == 3, "{starved:?}");
    Ok(())
}

/// Processor time is that of all runs since the start; logs count as the disk has them; uptime goes on over a restart of
/// the daemon, for it is the sandbox's.
#[tokio::test(flavor = "multi_thread")]
async fn stats_count_since_the_start_and_over_a_restart() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = small_room(&daemon).await?;
    let burn =
        "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass";
    room.python(burn).await?.exited(0)?;
    room.run("head -c 3M /dev/zero | tr '\\0' x")
        .await?
        .exited(0)?;
    let before = stats(&room).await?;
    let cpu = Duration::try_from(before.cpu_time.context("it is known")?)?;
    ensure!(cpu >= Duration::from_millis(300), "{before:?}");
    ensure!((3 * MIB..6 * MIB).contains(&before.log_bytes), "{before:?}");
    daemon.restart()?;
    let after = stats(&room).await?;
    let uptime = |stats: &pb::SandboxStats| -> Result<Duration> {
        Ok(Duration::try_from(stats.uptime.context("it is started")?)?)
    };
    ensure!(uptime(&after)? > uptime(&before)?, "{before:?} {after:?}");
    ensure!(Duration::try_from(after.cpu_time.context("it is known")?)? >= cpu);
    Ok(())
}

/// One that is frozen has all its figures, and stays frozen: its processes are there, and get no processor time.
#[tokio::test(flavor = "multi_thread")]
async fn stats_of_a_frozen_sandbox_stand_still_and_do_not_thaw_it() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = small_room(&daemon).await?;
    let mut live = room.run("echo begun; while :; do :; done").start().await?;
    live.wait_for("begun\n").await?;
    room.pause().await?;
    let first = stats(&room).await?;
    let second = stats(&room).await?;
    ensure!(
        first.state() == SandboxState::Frozen && first.pids == Some(1),
        "{first:?}"
    );
    ensure!(
        first.cpu_time.is_some() && first.cpu_time == second.cpu_time,
        "{first:?} {second:?}"
    );
    ensure!(
        (second.live_runs, room.get().await?.state()) == (1, SandboxState::Frozen),
        "{second:?}"
    );
    Ok(())
}

/// One that is stopped has no figures of processes; its logs and its runs are still there. A start begins anew.
#[tokio::test(flavor = "multi_thread")]
async fn stats_of_a_stopped_sandbox_have_no_figures_of_processes() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = small_room(&daemon).await?;
    room.run("head -c 1M /dev/zero | tr '\\0' x")
        .await?
        .exited(0)?;
    room.stop().await?;
    let stopped = stats(&room).await?;
    let absent = pb::SandboxStats {
        state: SandboxState::Stopped.into(),
        kept_runs: 1,
        log_bytes: stopped.log_bytes,
        // Its files are there.
        disk_bytes: stopped.disk_bytes,
        disk_limit_bytes: stopped.disk_limit_bytes,
        inodes: stopped.inodes,
        inodes_limit: stopped.inodes_limit,
        ..Default::default()
    };
    ensure!(stopped == absent && stopped.log_bytes >= MIB, "{stopped:?}");
    ensure!(
        stopped.disk_bytes.is_some() && stopped.disk_limit_bytes.is_some(),
        "{stopped:?}"
    );
    room.run("true").await?.exited(0)?;
    until("the figures begin anew", SOON, || async {
        let started = stats(&room).await?;
        Ok((started.pids == Some(0) && started.uptime.is_some()).then_some(()))
    })
    .await
}
