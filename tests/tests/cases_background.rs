//! Cases B1 to B3 and B5: a background child does not hang the call, and does not vanish either.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::cgroup;
use lodge_tests::daemon::Daemon;
use lodge_tests::live::contains;
use lodge_tests::wait::until;

/// "Well under a second", on a busy machine.
const AT_ONCE: Duration = Duration::from_millis(900);

async fn survivor_is_listed_and_killable(script: &str) -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("b1").await?;
    room.run("true").await?.exited(0)?;
    let ran = room.run(script).await?;
    ran.exited(0)?;
    ensure!(ran.took < AT_ONCE, "it took {:?}", ran.took);
    ensure!(
        ran.result.left_running == 1,
        "left_running is {}",
        ran.result.left_running
    );
    let listed = room.processes_of(&ran.result.run_id).await?;
    let survivor = listed.first().context("the survivor is not listed")?;
    ensure!(listed.len() == 1 && !survivor.run_live, "{listed:?}");
    ensure!(survivor.command.contains("sleep 30"), "{survivor:?}");
    ensure!(room.kill(&ran.result.run_id).await? == 1);
    until("the survivor is gone", Duration::from_secs(5), || async {
        Ok(room
            .processes_of(&ran.result.run_id)
            .await?
            .is_empty()
            .then_some(()))
    })
    .await
}

/// A child left in the background by a subshell: the call returns at once, counts it, lists it and can end it.
#[tokio::test(flavor = "multi_thread")]
async fn case_b1_subshell_child_does_not_hang_the_call() -> Result<()> {
    survivor_is_listed_and_killable("(sleep 30 &) ; true").await
}

/// The same for a plain background child, which still holds both output pipes.
#[tokio::test(flavor = "multi_thread")]
async fn case_b1_background_child_does_not_hang_the_call() -> Result<()> {
    survivor_is_listed_and_killable("sleep 30 &").await
}

/// A survivor that goes on writing is not blocked, though it writes far more than a pipe holds, and its output is in
/// the log of its own run.
#[tokio::test(flavor = "multi_thread")]
async fn case_b2_survivors_output_is_logged() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("b2").await?;
    let script = "(until [ -e go ]; do sleep 0.05; done
        head -c 3000000 /dev/zero | tr '\\0' x; echo late; touch done) &
        echo early";
    let ran = room.run(script).await?;
    ensure!(ran.exited(0)?.text() == "early\n", "{}", ran.story());
    ensure!(ran.took < AT_ONCE, "it took {:?}", ran.took);
    ensure!(ran.result.left_running >= 1);
    room.run("touch go; until [ -e done ]; do sleep 0.05; done")
        .timeout(Duration::from_secs(20))
        .await?
        .exited(0)?;
    let log = until(
        "the late output is in the log",
        Duration::from_secs(5),
        || async {
            let log = room
                .whole_log(&ran.result.run_id, pb::Stream::Stdout)
                .await?;
            Ok(contains(&log, b"late\n").then_some(log))
        },
    )
    .await?;
    ensure!(
        log.len() == "early\n".len() + 3_000_000 + "late\n".len(),
        "the log has {} bytes",
        log.len()
    );
    Ok(())
}

/// A child that ignores every signal it can and holds the output does not delay the answer beyond timeout and grace.
#[tokio::test(flavor = "multi_thread")]
async fn case_b3_stubborn_holder_of_stdout_does_not_hang_the_timeout() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("b3").await?;
    let script = "(trap '' TERM INT HUP PIPE; while :; do sleep 0.2; done) & echo held; sleep 100";
    let ran = room.run(script).timeout(Duration::from_secs(1)).await?;
    ensure!(ran.timed_out()?.text() == "held\n", "{}", ran.story());
    ensure!(
        ran.took < Duration::from_millis(4500),
        "it took {:?}",
        ran.took
    );
    ensure!(room.processes_of(&ran.result.run_id).await?.is_empty());
    Ok(())
}

/// A run's server that is sent the outputs of later runs and keeps them does not keep those runs: nothing of them is
/// left once their own processes are gone.
#[tokio::test(flavor = "multi_thread")]
async fn runs_are_let_go_of_though_another_run_holds_their_output() -> Result<()> {
    const KEEPER: &str = "python3 -c '
import socket
listener = socket.socket(socket.AF_UNIX)
listener.bind(\"/tmp/keeper\")
listener.listen(64)
kept = []
while True:
    peer, _ = listener.accept()
    kept.append(socket.recv_fds(peer, 1, 2))
    peer.sendall(b\"k\")
' & until [ -S /tmp/keeper ]; do sleep 0.05; done";
    const SENDER: &str = "
import os, socket, subprocess
peer = socket.socket(socket.AF_UNIX)
peer.connect('/tmp/keeper')
socket.send_fds(peer, [b'x'], [1, 2])
peer.recv(1)
if 'SURVIVOR' in os.environ: subprocess.Popen(['sleep', '1'])
print('sent')
";
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("keeper").await?;
    let keeper = room.run(KEEPER).await?;
    keeper.exited(0)?;
    let mut senders = Vec::new();
    for number in 0..20 {
        let sender = room.python(SENDER);
        // Some have a survivor of their own for a while, which is waited for.
        let sender = match number % 5 {
            0 => sender.env("SURVIVOR", "yes"),
            _ => sender,
        };
        let ran = sender.await?;
        ensure!(ran.exited(0)?.text() == "sent\n", "{}", ran.story());
        senders.push(ran.result.run_id);
    }
    until("their groups are gone", Duration::from_secs(10), || async {
        let groups = senders
            .iter()
            .map(|run| cgroup::containing(&daemon.cgroup(), run));
        let left = groups.collect::<Result<Vec<_>>>()?;
        Ok(left.iter().all(Vec::is_empty).then_some(()))
    })
    .await?;
    let listed = room.processes().await?;
    let of_keeper = |p: &pb::Process| p.run_id == keeper.result.run_id;
    ensure!(
        !listed.is_empty() && listed.iter().all(of_keeper),
        "{listed:?}"
    );
    Ok(())
}

/// Two runs in one sandbox at once, where one waits for a file that the other makes. Neither is told "busy".
#[tokio::test(flavor = "multi_thread")]
async fn case_b5_two_runs_at_once() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("b5").await?;
    let mut waiting = room
        .run("echo ready; until [ -e made ]; do sleep 0.05; done; echo seen")
        .start()
        .await?;
    waiting.wait_for("ready").await?;
    room.run("touch made").await?.exited(0)?;
    let result = waiting.end().await?;
    ensure!(
        result.end_reason() == pb::EndReason::Exited && result.exit_code == 0,
        "{result:?}"
    );
    ensure!(waiting.stdout == b"ready\nseen\n");
    Ok(())
}
