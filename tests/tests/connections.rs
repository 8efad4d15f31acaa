//! Bounds on connections: whoever takes all that one may have keeps nobody else out, and is told at once.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::api::Api;
use lodge_tests::daemon::Daemon;
use lodge_tests::wait::until;
use lodge_tests::{cli, host};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::Code;

/// Connections of the client that takes too many: about twice what the daemon has places for.
const GREEDY: usize = 2_000;
/// An answer that is not waited for comes within this time, also on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(20);

/// 2,000 connections that say nothing: another client works, the greedy one is told at its next call that it has too
/// many, or finds that connection closed; the daemon's memory and descriptors stay bounded; and all is as before once they are gone.
#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_keep_nobody_out() -> Result<()> {
    raise_own_limit()?;
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("guest").await?;
    let socket = daemon.slot().home().join("lodged.sock");
    let mut idle = Vec::new();
    for _ in 0..GREEDY {
        idle.push(timeout(AT_ONCE, UnixStream::connect(&socket)).await??);
    }
    let said = timeout(
        AT_ONCE,
        cli::lodge(
            &daemon,
            &["run", "--sandbox", "guest", "--", "echo", "fine"],
        ),
    )
    .await??;
    ensure!(
        said.status.success() && said.stdout == b"fine\n",
        "{said:?}"
    );
    // The connection that was there first is not hurt either.
    ensure!(room.run("echo fine").await?.ok()? == "fine");

    // Places for being told are few, and taken for a moment by what was not let in: then the connection is closed.
    until("it is told that it has too many", AT_ONCE, || async {
        let late = Api::new(&socket)?;
        let listed = timeout(
            AT_ONCE,
            late.sandboxes().list(pb::ListSandboxesRequest::default()),
        )
        .await
        .context("a call waits for a place")?;
        let status = listed.err().context("one process got a place too many")?;
        match status.code() {
            Code::ResourceExhausted => Ok(Some(())),
            Code::Unavailable | Code::Unknown | Code::Cancelled => Ok(None),
            other => anyhow::bail!("{other:?}: {status:?}"),
        }
    })
    .await?;
    let files = host::open_files(daemon.pid()?)?;
    ensure!(files < 600, "the daemon has {files} descriptors");
    drop(idle);
    until("there is room again", AT_ONCE, || async {
        let late = Api::new(&socket)?;
        Ok(late.list().await.ok().map(drop))
    })
    .await?;
    Ok(())
}

/// Several processes of one user, each with as many connections as it gets: another user's is served.
#[tokio::test(flavor = "multi_thread")]
async fn one_user_leaves_room_for_another() -> Result<()> {
    let daemon = Daemon::new().await?;
    daemon.api().room("guest").await?;
    let socket = daemon.slot().home().join("lodged.sock");
    // Whoever the test lets in: the mode is what keeps them out.
    let all: std::fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    std::fs::set_permissions(&socket, all)?;
    let program = format!(
        "import os, socket, sys\n\
         os.setuid(54321)\n\
         kept = []\n\
         for _ in range(300):\n\
         \x20 s = socket.socket(socket.AF_UNIX); s.connect({socket:?}); kept.append(s)\n\
         print('taken', flush=True)\n\
         sys.stdin.read()\n"
    );
    let mut greedy = Vec::new();
    for _ in 0..5 {
        let mut child = tokio::process::Command::new("python3")
            .args(["-c", &program])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut line = String::new();
        let out = child.stdout.as_mut().context("a pipe")?;
        let mut out = tokio::io::BufReader::new(out);
        timeout(
            AT_ONCE,
            tokio::io::AsyncBufReadExt::read_line(&mut out, &mut line),
        )
        .await??;
        ensure!(line == "taken\n", "{line:?}");
        greedy.push(child);
    }
    let said = cli::lodge(
        &daemon,
        &["run", "--sandbox", "guest", "--", "echo", "fine"],
    )
    .await?;
    ensure!(
        said.status.success() && said.stdout == b"fine\n",
        "{said:?}"
    );
    Ok(())
}

/// The test itself needs more descriptors than a shell usually gives.
fn raise_own_limit() -> Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: now.maximum,
        ..now
    };
    Ok(setrlimit(Resource::Nofile, raised)?)
}
