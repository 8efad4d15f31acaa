//! What the `lodge` command says where it would otherwise be silent, or leave a newcomer without a way on.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, ensure};
use lodge_proto::v1::SandboxState;
use lodge_tests::cli::{command, lodge};
use lodge_tests::daemon::Daemon;
use lodge_tests::wait::{SOON, until_blocking};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::time::timeout;

/// A create of what exists changes nothing, and says what would.
#[tokio::test(flavor = "multi_thread")]
async fn create_of_an_existing_sandbox_names_update() -> Result<()> {
    let daemon = Daemon::new().await?;
    lodge(&daemon, &["create", "twice"]).await?.exited(0)?;
    let again = lodge(&daemon, &["create", "twice", "--memory", "1GiB"]).await?;
    again.exited(0)?;
    ensure!(
        again.stderr.contains("left as it is") && again.stderr.contains("`lodge update twice`"),
        "{}",
        again.stderr
    );
    Ok(())
}

/// A call that cannot be right leaves no sandbox behind, whoever finds out.
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_request_creates_no_sandbox() -> Result<()> {
    let daemon = Daemon::with_config("max_timeout_seconds = 3600").await?;
    for bad in [
        &["-e", "A\n=x", "-e", "=x"][..],
        &["-t", "2h"],
        &["-w", "not/absolute"],
        &["-u", "a:b:c"],
        &["-i", "-w", "not/absolute"],
        &["--image", "base", "-w", "not/absolute"],
        &["--json", "-w", "not/absolute"],
    ] {
        let args = [&["run", "-s", "never"], bad, &["true"]].concat();
        lodge(&daemon, &args)
            .await?
            .exited(125)
            .with_context(|| format!("{args:?}"))?;
        let listed = lodge(&daemon, &["ls"]).await?;
        ensure!(!listed.text().contains("never"), "{args:?} created it");
    }
    lodge(&daemon, &["run", "-s", "never", "true"])
        .await?
        .exited(0)?;
    Ok(())
}

/// Who waits for the output of a run in a frozen sandbox is told why nothing comes.
#[tokio::test(flavor = "multi_thread")]
async fn attach_and_logs_say_that_the_sandbox_is_paused() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("cold").await?;
    let mut live = room.run("echo begun; read line").start_with_stdin().await?;
    live.wait_for("begun").await?;
    let run = live.run_id.clone();
    room.pause().await?;
    for args in [
        &["attach", "-s", "cold", &run][..],
        &["attach", "-s", "cold", "--from-start", &run],
        &["logs", "-s", "cold", "-f", &run],
    ] {
        let mut child = command(&daemon, args)?.spawn()?;
        let stderr = child.stderr.take().context("piped")?;
        let mut lines = BufReader::new(stderr).lines();
        let line = timeout(SOON, lines.next_line())
            .await
            .with_context(|| format!("{args:?} says nothing"))??
            .unwrap_or_default();
        ensure!(
            line.contains("paused") && line.contains("`lodge resume cold`"),
            "{args:?}: {line}"
        );
        child.kill().await?;
    }
    Ok(())
}

/// No process is listed of a sandbox that is stopped or cannot be reached; it is not the same thing, and is said.
#[tokio::test(flavor = "multi_thread")]
async fn ps_says_why_there_is_nothing_to_list() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("gone").await?;
    room.run("sleep 600 >/dev/null 2>&1 & true")
        .await?
        .exited(0)?;
    daemon.terminate()?;
    std::fs::remove_dir_all(daemon.slot().home().join("run"))?;
    daemon.start_again()?;
    ensure!(room.state().await? == SandboxState::Damaged);
    let said = lodge(&daemon, &["ps", "-s", "gone"]).await?;
    said.exited(125)?;
    ensure!(
        said.stderr.contains(&room.get().await?.state_reason)
            && said.stderr.contains("cannot be listed"),
        "{}",
        said.stderr
    );
    lodge(&daemon, &["stop", "gone"]).await?.exited(0)?;
    let said = lodge(&daemon, &["ps", "-s", "gone"]).await?;
    said.exited(0)?;
    ensure!(said.stderr.contains("is stopped"), "{}", said.stderr);
    Ok(())
}

/// A call that comes while the daemon ends its last ones waits for the next daemon.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_during_the_drain_waits_for_the_next_daemon() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("drain").await?;
    let mut live = room.run("echo begun; sleep 600").start().await?;
    live.wait_for("begun").await?;
    kill(Pid::from_raw(daemon.pid()?), Signal::SIGTERM)?;
    let socket = daemon.socket();
    until_blocking("clients are refused", SOON, || {
        let refused = UnixStream::connect(&socket);
        Ok(refused
            .is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused)
            .then_some(()))
    })?;
    // The stream above keeps the daemon for the whole of its drain.
    let listing = command(&daemon, &["ls"])?.spawn()?;
    ensure!(daemon.lives()?, "it is gone already");
    daemon.ended()?;
    daemon.start_again()?;
    let listed = timeout(SOON, listing.wait_with_output()).await??;
    ensure!(
        listed.status.success() && String::from_utf8_lossy(&listed.stdout).contains("drain"),
        "{:?}: {}",
        listed.status,
        String::from_utf8_lossy(&listed.stderr)
    );
    Ok(())
}
