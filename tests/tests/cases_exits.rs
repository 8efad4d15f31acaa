//! Cases F1 to F5: how a run ended comes from the kernel, and is never guessed.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::daemon::Daemon;
use lodge_tests::host;
use lodge_tests::prober::HOG;
use lodge_tests::room::Room;
use lodge_tests::slot::UID_BLOCK;
use lodge_tests::wait::until;
use tokio::task::JoinSet;

const MIB: i64 = 1 << 20;

/// A signal is reported as that signal, with the code that shells use and the kernel's own wait status.
#[tokio::test(flavor = "multi_thread")]
async fn case_f1_signals_are_reported() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("f1").await?;
    for (script, signal) in [
        ("kill -9 $$", 9),
        ("kill -TERM $$", 15),
        ("exec python3 -c 'import ctypes; ctypes.string_at(0)'", 11),
        ("kill -PIPE $$", 13),
    ] {
        let ran = room.run(script).await?;
        ran.signaled(signal).with_context(|| script.to_owned())?;
        ensure!(
            ran.result.wait_status == Some(signal),
            "{script}: {:?}",
            ran.result.wait_status
        );
    }
    let ran = room.run("exit 77").await?;
    ensure!(ran.exited(77)?.result.wait_status == Some(77 << 8) && ran.result.signal.is_none());
    Ok(())
}

async fn small_room(daemon: &Daemon, memory: i64) -> Result<Room> {
    let limits = pb::Limits {
        memory_bytes: Some(memory),
        ..Default::default()
    };
    let request = pb::AcquireRequest {
        name: "small".into(),
        limits: Some(limits),
        ..Default::default()
    };
    daemon.api().acquire(request).await
}

/// A command that eats all memory is reported as killed for it, by the kernel's counter, with its peak; the next run
/// works.
#[tokio::test(flavor = "multi_thread")]
async fn case_f2_memory_hog_is_oom_killed() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = small_room(&daemon, 64 * MIB).await?;
    let ran = room.python(HOG).timeout(Duration::from_secs(30)).await?;
    ensure!(ran.reason() == pb::EndReason::OomKilled, "{}", ran.story());
    ensure!(
        ran.code() == 137 && ran.result.oom_kills.is_some_and(|n| n >= 1),
        "{:?}",
        ran.result
    );
    let told = &ran.result.message;
    // The kernel does not tell which of the run's processes it killed.
    ensure!(told.contains("of this run for want of memory"), "{told:?}");
    let peak = ran.result.peak_memory_bytes.context("the peak is known")?;
    // What is being killed for want of memory may take a little more, so that it can end; version 2 of cgroups counts that.
    ensure!((32 << 20..=68 << 20).contains(&peak), "the peak is {peak}");
    ensure!(room.run("echo fine").await?.ok()? == "fine");
    Ok(())
}

/// A program that exits with 137 by itself has exited; nothing was killed.
#[tokio::test(flavor = "multi_thread")]
async fn case_f3_exit_137_is_an_exit() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = small_room(&daemon, 64 * MIB).await?;
    let ran = room.run("exit 137").await?;
    ran.exited(137)?;
    ensure!(ran.result.oom_kills.unwrap_or(0) == 0 && ran.result.signal.is_none());
    // Also in a sandbox in which the kernel did kill before.
    room.python(HOG).timeout(Duration::from_secs(30)).await?;
    let ran = room.run("exit 137").await?;
    ran.exited(137)?;
    Ok(())
}

/// What cannot be executed ends with 127 (not found) or 126 (not executable), and a message says why.
#[tokio::test(flavor = "multi_thread")]
async fn case_f4_what_cannot_be_executed() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("f4").await?;
    room.run("touch plain; printf '#!/no/such\\n' > script; chmod +x script; mkdir dir")
        .await?
        .exited(0)?;
    for (program, code) in [
        ("no-such-command", 127),
        ("/no/such/path", 127),
        ("/home/user/dir", 126),
        ("/home/user/plain", 126),
        ("/home/user/script", 127),
    ] {
        let by_argv = room.argv(&[program]).await?;
        by_argv
            .exited(code)
            .with_context(|| format!("argv {program}"))?;
        ensure!(
            by_argv.result.message.contains(program),
            "no message names it: {}",
            by_argv.story()
        );
        let by_shell = room.run(program).await?;
        by_shell
            .exited(code)
            .with_context(|| format!("shell {program}"))?;
        let name = program.rsplit('/').next().unwrap_or(program);
        ensure!(by_shell.errors().contains(name), "{}", by_shell.story());
    }
    Ok(())
}

/// A user or group that the image lacks is named in plain words.
#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_user_is_named() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("users").await?;
    for (user, message) in [
        ("nosuch", "no such user: nosuch"),
        ("root:nosuch", "no such group: nosuch"),
    ] {
        let ran = room.run("true").user(user).await?;
        ran.exited(126)?;
        ensure!(ran.result.message == message, "{}", ran.story());
    }
    Ok(())
}

/// Runs of the test, in lanes of so many at once.
const ORPHAN_RUNS: usize = 1000;
const LANES: usize = 8;

/// A thousand runs that leave orphans which end a little later: no zombie stays, and every answer was right.
#[tokio::test(flavor = "multi_thread")]
async fn case_f5_thousand_runs_with_orphans_leave_no_zombie() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("f5").await?;
    room.run("true").await?.exited(0)?;
    let base = room.uid_base(&daemon.cgroup())?;
    let mut lanes = JoinSet::new();
    for lane in 0..LANES {
        let room = room.clone();
        lanes.spawn(async move {
            for n in 0..ORPHAN_RUNS / LANES {
                let ran = room
                    .run(format!("(sleep 0.01 & sleep 0.02 &); echo {lane}.{n}"))
                    .await?;
                ensure!(
                    ran.exited(0)?.text() == format!("{lane}.{n}\n"),
                    "{}",
                    ran.story()
                );
            }
            Ok(())
        });
    }
    while let Some(lane) = lanes.join_next().await {
        lane??;
    }
    until(
        "the holder is the only process left, and no zombie",
        Duration::from_secs(10),
        || async { Ok((host::processes_of_uids(base, UID_BLOCK)?.len() == 1).then_some(())) },
    )
    .await
    .with_context(|| format!("{:?}", host::processes_of_uids(base, UID_BLOCK)))
}
