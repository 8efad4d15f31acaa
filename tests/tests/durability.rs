//! What outlives the daemon: sandboxes, their files, and honest lists of both. And images, which are shared by all.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lodge_proto::v1::{self as pb, SandboxState};
use lodge_tests::api::refused;
use lodge_tests::arena::leaves_nothing;
use lodge_tests::binary;
use lodge_tests::daemon::{Daemon, Images, Options, command_without_route, private_dir};
use lodge_tests::image;
use lodge_tests::wait::{SOON, until, until_blocking};
use tonic::Code;

/// After an ordinary restart every sandbox is listed with its labels, and its files are there.
#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_and_files_outlive_a_restart() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    for name in ["one", "two"] {
        let labels = [("team".to_owned(), name.to_owned())].into();
        let request = pb::AcquireRequest {
            name: name.into(),
            labels,
            ..Default::default()
        };
        let room = daemon.api().acquire(request).await?;
        room.run(format!("echo {name} > file")).await?.exited(0)?;
    }
    let before = daemon.api().list().await?;
    daemon.restart()?;
    let after = daemon.api().list().await?;
    ensure!(after.len() == 2, "{after:?}");
    for (old, new) in before.iter().zip(&after) {
        ensure!(old.id == new.id && old.labels == new.labels && old.created_at == new.created_at);
        ensure!(
            old.limits == new.limits && new.state() != SandboxState::Damaged,
            "{new:?}"
        );
        let room = daemon.api().room(&new.name).await?;
        ensure!(room.id() == new.id && room.run("cat file").await?.ok()? == new.name);
    }
    Ok(())
}

/// After kill -9 the sandbox is listed and the next run works, in the same files.
#[tokio::test(flavor = "multi_thread")]
async fn next_run_works_after_kill_9() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("phoenix").await?;
    room.run("echo kept > file").await?.exited(0)?;
    for _ in 0..3 {
        daemon.kill9()?;
        daemon.start_again()?;
        ensure!(room.run("cat file").await?.ok()? == "kept");
        ensure!(daemon.api().list().await?.len() == 1);
    }
    Ok(())
}

/// When the processes of a sandbox have gone too, as after a reboot, the next run starts it with its files.
#[tokio::test(flavor = "multi_thread")]
async fn next_run_starts_a_sandbox_whose_processes_are_gone() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("reboot").await?;
    room.run("echo kept > file").await?.exited(0)?;
    daemon.kill9()?;
    lodge_tests::cgroup::remove(&daemon.cgroup())?;
    daemon.start_again()?;
    let state = room.get().await?.state();
    ensure!(state == SandboxState::Stopped, "{state:?}");
    ensure!(room.run("cat file").await?.ok()? == "kept");
    Ok(())
}

/// Killing PID 1 ends its runs as lost, and the next run starts the sandbox again.
#[tokio::test(flavor = "multi_thread")]
async fn runs_of_a_dead_holder_are_lost() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("lost").await?;
    let mut live = room.run("echo begun; sleep 100").start().await?;
    live.wait_for("begun").await?;
    let holder = room.holder_pid(&daemon.cgroup())?;
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(holder),
        nix::sys::signal::Signal::SIGKILL,
    )?;
    let result = live.end().await?;
    ensure!(
        result.end_reason() == pb::EndReason::Lost && result.exit_code == -1,
        "{result:?}"
    );
    ensure!(
        result.wait_status.is_none() && result.signal.is_none(),
        "{result:?}"
    );
    ensure!(room.run("echo again").await?.ok()? == "again");
    Ok(())
}

/// Stopping a sandbox ends its runs honestly and keeps its files.
#[tokio::test(flavor = "multi_thread")]
async fn stop_ends_runs_and_keeps_files() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("stopped").await?;
    let mut live = room
        .run("echo kept > file; echo begun; sleep 100")
        .start()
        .await?;
    live.wait_for("begun").await?;
    room.stop().await?;
    ensure!(live.end().await?.end_reason() == pb::EndReason::SandboxStopped);
    ensure!(room.get().await?.state() == SandboxState::Stopped);
    ensure!(room.run("cat file").await?.ok()? == "kept");
    Ok(())
}

/// A second daemon on the same state directory refuses to start, and says which directory and whose.
#[tokio::test(flavor = "multi_thread")]
async fn second_daemon_on_a_directory_refuses() -> Result<()> {
    let daemon = Daemon::new().await?;
    let mut second = command_without_route(&binary::path("lodged")?);
    second
        .arg("--config")
        .arg(daemon.config_file())
        .stdin(Stdio::null());
    let second = tokio::task::spawn_blocking(move || second.output());
    let output = tokio::time::timeout(Duration::from_secs(10), second)
        .await
        .context("it runs on")???;
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(
        output.status.code() == Some(1),
        "{:?}: {message}",
        output.status
    );
    ensure!(
        message.contains(&*daemon.state_dir().to_string_lossy()),
        "{message}"
    );
    ensure!(message.contains(&daemon.pid()?.to_string()), "{message}");
    daemon.api().health().await?;
    Ok(())
}

fn record(daemon: &Daemon, id: &str) -> PathBuf {
    daemon.sandbox_dir(id).join("record.json")
}

/// Makes a record's text into something else.
type Damage = fn(&str) -> Vec<u8>;

/// A sandbox whose record is damaged is listed with the reason, its data are not overwritten, it can be deleted, and
/// the others do not notice.
#[tokio::test(flavor = "multi_thread")]
async fn damaged_record_is_listed_and_deletable() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let fine = daemon.api().room("fine").await?;
    let damages: [(&str, Damage); 6] = [
        ("empty", |_| Vec::new()),
        ("flipped", |text| {
            text.replacen("flipped", "flippfd", 1).into_bytes()
        }),
        ("zeroed", |text| vec![0; text.len()]),
        ("null", |_| b"null".to_vec()),
        ("truncated", |text| {
            text.as_bytes()[..text.len() / 2].to_vec()
        }),
        ("version", |text| {
            text.replacen("\"version\":3", "\"version\":999", 1)
                .replacen("\"version\": 1", "\"version\": 999", 1)
                .into_bytes()
        }),
    ];
    let mut rooms = Vec::new();
    for (name, _) in damages {
        let room = daemon.api().room(name).await?;
        let base = room.uid_base(&daemon.cgroup())?;
        rooms.push((room, base));
    }
    daemon.terminate()?;
    for ((room, _), (_, damage)) in rooms.iter().zip(damages) {
        let path = record(&daemon, room.id());
        let text = fs::read_to_string(&path)?;
        let damaged = damage(&text);
        ensure!(
            damaged != text.as_bytes(),
            "{} is not damaged",
            path.display()
        );
        fs::write(&path, damaged)?;
    }
    daemon.start_again()?;
    ensure!(fine.run("echo fine").await?.ok()? == "fine");
    ensure!(daemon.api().list().await?.len() == 7);
    for (room, base) in rooms {
        let seen = room.get().await?;
        ensure!(
            seen.state() == SandboxState::Damaged && !seen.state_reason.is_empty(),
            "{seen:?}"
        );
        refused(
            room.run("true").send().await,
            Code::FailedPrecondition,
            "a run in a damaged sandbox",
        )?;
        ensure!(
            record(&daemon, room.id()).exists(),
            "the record was removed"
        );
        room.delete().await?;
        leaves_nothing(&daemon, room.id(), base).await?;
    }
    ensure!(daemon.api().list().await?.len() == 1);
    Ok(())
}

/// A uid range is not used again while anything that has it is there: a create that failed and could not be taken back
/// keeps its range, and is a sandbox like others after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn failed_create_that_left_files_keeps_its_uid_range() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let trash = daemon.state_dir().join("trash");
    let holders = daemon.slot().home().join("run/holders");
    // A holder has no place for its socket, and what is discarded has none either.
    fs::remove_dir(&holders)?;
    fs::write(&holders, "")?;
    fs::remove_dir(&trash)?;
    fs::write(&trash, "")?;
    ensure!(daemon.api().room("failed").await.is_err());
    fs::remove_file(&trash)?;
    private_dir(&trash)?;
    fs::remove_file(&holders)?;
    private_dir(&holders)?;
    let kept = only_uid_base(&daemon)?;
    let next = daemon.api().room("next").await?;
    let base = next.uid_base(&daemon.cgroup())?;
    ensure!(base != kept, "both have ids from {base} on");

    daemon.restart()?;
    let listed = daemon.api().list().await?;
    let names: Vec<_> = listed.iter().map(|one| one.name.as_str()).collect();
    ensure!(names == ["failed", "next"], "{names:?}");
    let failed = daemon.api().room("failed").await?;
    ensure!(failed.run("echo up").await?.ok()? == "up");
    failed.delete().await?;
    leaves_nothing(&daemon, failed.id(), kept).await
}

/// Why a create failed is in the log, once: an operator finds the cause, which the caller does not get.
#[tokio::test(flavor = "multi_thread")]
async fn failed_create_is_logged_once_with_its_cause() -> Result<()> {
    let daemon = Daemon::new().await?;
    let holders = daemon.slot().home().join("run/holders");
    fs::remove_dir(&holders)?;
    fs::write(&holders, "in the way")?;
    let request = pb::AcquireRequest {
        name: "failed".into(),
        ..Default::default()
    };
    let refused = daemon.api().try_acquire(request).await;
    let message = refused
        .err()
        .context("it was created")?
        .message()
        .to_owned();
    let cause = "Not a directory";
    ensure!(!message.contains(cause), "{message}");
    let is_told = |line: &&str| line.contains("call failed") && line.contains(cause);
    // The log is written behind the daemon's back.
    let times = until_blocking("the cause is told", SOON, || {
        let log = fs::read_to_string(daemon.log_file())?;
        let times = log.lines().filter(is_told).count();
        Ok((times > 0).then_some(times))
    })?;
    ensure!(times == 1, "{times} times");
    Ok(())
}

/// The uid range in the record of the one sandbox that has a directory.
fn only_uid_base(daemon: &Daemon) -> Result<u32> {
    let mut dirs = fs::read_dir(daemon.sandboxes_dir())?;
    let dir = dirs.next().context("a directory")??.path();
    ensure!(dirs.next().is_none(), "there are more");
    let text = fs::read_to_string(dir.join("record.json"))?;
    let envelope: serde_json::Value = serde_json::from_str(&text)?;
    let base = envelope["record"]["uid_base"].as_u64();
    Ok(base.context("uid_base")?.try_into()?)
}

/// A deleted sandbox leaves nothing, its name can be used again, and deleting twice says that it is gone.
#[tokio::test(flavor = "multi_thread")]
async fn deleted_sandbox_leaves_nothing() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("again").await?;
    let base = room.uid_base(&daemon.cgroup())?;
    let mut live = room
        .run("echo old > file; echo begun; setsid sleep 100 & sleep 100")
        .start()
        .await?;
    live.wait_for("begun").await?;
    room.delete().await?;
    ensure!(live.end().await?.end_reason() == pb::EndReason::SandboxStopped);
    leaves_nothing(&daemon, room.id(), base).await?;
    refused(room.delete().await, Code::NotFound, "deleting twice")?;
    let next = daemon.api().room("again").await?;
    ensure!(next.id() != room.id());
    next.run("test ! -e file").await?.exited(0)?;
    Ok(())
}

/// The same content is one image under two names; one that a sandbox uses cannot be removed; the last name takes the
/// image with it.
#[tokio::test(flavor = "multi_thread")]
async fn images_are_one_by_content_and_kept_while_in_use() -> Result<()> {
    let daemon = Daemon::start(Options {
        images: Images::Own,
        ..Options::default()
    })
    .await?;
    let api = daemon.api();
    let archive = image::tiny()?.finish();
    let first = api.import("first", &archive).await?;
    let second = api
        .import("second", &lodge_tests::hostile::gzip(&archive)?)
        .await?;
    ensure!(
        first.digest == second.digest,
        "{} and {}",
        first.digest,
        second.digest
    );
    ensure!(second.names == ["first", "second"], "{:?}", second.names);
    ensure!(api.list_images().await?.len() == 1);
    let request = pb::AcquireRequest {
        name: "user".into(),
        image: "first".into(),
        ..Default::default()
    };
    let room = api.acquire(request).await?;
    ensure!(api.list_images().await?[0].sandboxes == 1);
    ensure!(
        !api.remove_image("first").await?,
        "the second name keeps the image"
    );
    for in_use in ["second", &first.digest] {
        refused(
            api.remove_image(in_use).await,
            Code::FailedPrecondition,
            "an image in use",
        )?;
    }
    room.run("true").await?.exited(0)?;
    room.delete().await?;
    ensure!(api.remove_image("second").await?);
    ensure!(api.list_images().await?.is_empty());
    refused(
        api.remove_image("second").await,
        Code::NotFound,
        "an image that is gone",
    )?;
    Ok(())
}

/// Layers of a `docker save` archive are one tree: a whiteout hides what a lower layer has, an opaque directory all of
/// it.
#[tokio::test(flavor = "multi_thread")]
async fn layers_and_whiteouts_make_one_tree() -> Result<()> {
    let daemon = Daemon::start(Options {
        images: Images::Own,
        ..Options::default()
    })
    .await?;
    let mut lower = image::tiny()?;
    lower.parents("srv/gone/x")?.parents("srv/opaque/x")?;
    lower
        .file("srv/gone/file", b"lower")?
        .file("srv/opaque/lower", b"lower")?
        .file("srv/kept", b"lower")?;
    let mut upper = lodge_tests::hostile::Archive::new();
    upper
        .dir("srv")?
        .file("srv/.wh.gone", b"")?
        .dir("srv/opaque")?
        .file("srv/opaque/.wh..wh..opq", b"")?;
    upper.file("srv/opaque/upper", b"upper")?;
    let layers = [lower.finish(), upper.finish()];
    daemon
        .api()
        .import(
            "base",
            &lodge_tests::hostile::docker_save(&layers, &serde_json::json!({}))?,
        )
        .await?;
    let room = daemon.api().room("layers").await?;
    let seen = room
        .run("cd /srv; echo *; echo opaque/*; cat kept; echo new > opaque/lower; cat opaque/lower")
        .root()
        .await?;
    ensure!(
        seen.ok()? == "kept opaque\nopaque/upper\nlowernew",
        "{}",
        seen.story()
    );
    Ok(())
}

/// Looking is no activity: listing and inspecting a stopped sandbox does not start it.
#[tokio::test(flavor = "multi_thread")]
async fn watching_does_not_wake_a_sandbox() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("asleep").await?;
    room.stop().await?;
    ensure!(room.processes().await?.is_empty());
    daemon.api().list().await?;
    ensure!(room.get().await?.state() == SandboxState::Stopped);
    until("no holder runs", Duration::from_secs(5), || async {
        Ok(room.holder_pid(&daemon.cgroup()).is_err().then_some(()))
    })
    .await
}
