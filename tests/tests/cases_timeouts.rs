//! Cases A1 to A6: a timeout ends everything that the run started, and what was printed until then comes back.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::api::refused;
use lodge_tests::arena::no_timeout;
use lodge_tests::daemon::Daemon;
use lodge_tests::room::Room;
use tonic::Code;

/// From SIGTERM to the kill of the leaf.
const GRACE: Duration = Duration::from_secs(2);
/// A run that is not ended would keep the test waiting for as long as it likes.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// What a busy machine may add.
const SLACK: Duration = Duration::from_millis(1500);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

async fn nothing_is_left(room: &Room, run_id: &str) -> Result<()> {
    let left = room.processes_of(run_id).await?;
    ensure!(left.is_empty(), "processes of the run live on: {left:?}");
    Ok(())
}

/// A leader starts a server that opens a port, sees that it answers, and waits. After two seconds it is over: the run
/// says so, no process of the tree is left, and the port can be bound again.
#[tokio::test(flavor = "multi_thread")]
async fn case_a1_server_tree_ends_and_frees_its_port() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("a1").await?;
    let tree = "python3 -m http.server 8123 >/dev/null 2>&1 &
        until (exec 3<>/dev/tcp/127.0.0.1/8123) 2>/dev/null; do sleep 0.05; done
        echo open; wait";
    let ran = room.run(tree).timeout(seconds(2)).await?;
    ran.timed_out()?;
    ensure!(
        ran.text() == "open\n",
        "the server did not open its port: {}",
        ran.story()
    );
    nothing_is_left(&room, &ran.result.run_id).await?;
    let bind = "import socket; s = socket.socket(); s.bind(('127.0.0.1', 8123)); print('free')";
    ensure!(room.python(bind).await?.ok()? == "free");
    Ok(())
}

async fn escapes_no_timeout(script: &str) -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("a2").await?;
    let command = room
        .run(format!("echo begun; {script}"))
        .timeout(seconds(1));
    let ran = tokio::time::timeout(ANSWER_WITHIN, command.send())
        .await
        .context("no answer")??;
    ran.timed_out()?;
    ensure!(
        ran.text() == "begun\n",
        "the output so far is missing: {}",
        ran.story()
    );
    ensure!(
        ran.took < seconds(1) + GRACE + SLACK,
        "it took {:?}",
        ran.took
    );
    ensure!(
        ran.result.left_running == 0,
        "{} live on",
        ran.result.left_running
    );
    nothing_is_left(&room, &ran.result.run_id).await
}

/// A child in a session of its own dies with the run.
#[tokio::test(flavor = "multi_thread")]
async fn case_a2_setsid_child_dies_on_timeout() -> Result<()> {
    escapes_no_timeout("setsid sleep 300 & wait").await
}

/// A grandchild whose parent has gone dies with the run.
#[tokio::test(flavor = "multi_thread")]
async fn case_a2_double_fork_dies_on_timeout() -> Result<()> {
    escapes_no_timeout("(setsid sh -c 'sleep 300 & sleep 300 &' &); sleep 300").await
}

/// A child that ignores SIGHUP dies with the run.
#[tokio::test(flavor = "multi_thread")]
async fn case_a2_nohup_child_dies_on_timeout() -> Result<()> {
    escapes_no_timeout("nohup sleep 300 >/dev/null 2>&1 & wait").await
}

/// A child that ignores SIGTERM is killed after the grace period.
#[tokio::test(flavor = "multi_thread")]
async fn case_a2_child_that_ignores_term_dies_on_timeout() -> Result<()> {
    escapes_no_timeout("(trap '' TERM; sleep 300); echo never").await
}

/// A command that has stopped itself is killed too.
#[tokio::test(flavor = "multi_thread")]
async fn case_a2_stopped_command_dies_on_timeout() -> Result<()> {
    escapes_no_timeout("kill -STOP $$").await
}

/// The answer comes when the time is up, not when the command would have ended; what it would have printed then is
/// not there.
#[tokio::test(flavor = "multi_thread")]
async fn case_a3_answer_comes_at_the_deadline() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("a3").await?;
    let ran = room.run("sleep 10; echo hello").timeout(seconds(2)).await?;
    ran.timed_out()?;
    ensure!(
        ran.took < seconds(2) + GRACE + SLACK,
        "it took {:?}",
        ran.took
    );
    ensure!(ran.stdout().is_empty(), "{}", ran.story());
    Ok(())
}

/// A timeout is an ordinary result with the output so far, not an error of the call.
#[tokio::test(flavor = "multi_thread")]
async fn case_a4_timeout_is_a_result_with_partial_output() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("a4").await?;
    let ran = room.run("echo part; sleep 60").timeout(seconds(1)).await?;
    ensure!(ran.timed_out()?.text() == "part\n", "{}", ran.story());
    Ok(())
}

/// Zero means no limit: a quiet command outlasts the default timeout and ends with its own code.
#[tokio::test(flavor = "multi_thread")]
async fn case_a5_zero_means_no_timeout() -> Result<()> {
    let daemon = Daemon::with_config("default_timeout_seconds = 1").await?;
    let room = daemon.api().room("a5").await?;
    room.run("sleep 30").await?.timed_out()?;
    room.run("sleep 3; exit 7")
        .with(no_timeout)
        .await?
        .exited(7)?;
    Ok(())
}

/// Timeouts that are above the server's maximum, negative, malformed or beyond any clock are refused, the maximum is
/// named, and nothing is run.
#[tokio::test(flavor = "multi_thread")]
async fn case_a6_impossible_timeouts_are_refused_with_the_maximum() -> Result<()> {
    let daemon = Daemon::with_config("max_timeout_seconds = 10").await?;
    let room = daemon.api().room("a6").await?;
    for (seconds, nanos) in [
        (0, 0),
        (11, 0),
        (10, 1),
        (-1, 0),
        (0, -1),
        (i64::MAX, 0),
        (i64::MIN, 0),
        (1, 2_000_000_000),
        (1, -1),
    ] {
        let what = format!("a timeout of {seconds} s {nanos} ns");
        let timeout = prost_types::Duration { seconds, nanos };
        let outcome = room
            .run("touch ran")
            .with(|s| s.timeout = Some(timeout))
            .send()
            .await;
        let message = refused(outcome, Code::InvalidArgument, &what)?;
        ensure!(
            message.contains("10 s"),
            "{what}: the maximum is not named: {message}"
        );
    }
    room.run("test ! -e ran")
        .timeout(seconds(10))
        .await?
        .exited(0)?;
    Ok(())
}

/// Where the server has no maximum, a timeout beyond any clock is still refused rather than taken as endless.
#[tokio::test(flavor = "multi_thread")]
async fn case_a6_overflowing_timeout_is_refused_without_a_maximum() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("a6").await?;
    for seconds in [i64::MAX, -1] {
        let timeout = prost_types::Duration { seconds, nanos: 0 };
        let outcome = room
            .run("true")
            .with(|s: &mut pb::RunSpec| s.timeout = Some(timeout))
            .send()
            .await;
        refused(
            outcome,
            Code::InvalidArgument,
            &format!("a timeout of {seconds} s"),
        )?;
    }
    Ok(())
}
