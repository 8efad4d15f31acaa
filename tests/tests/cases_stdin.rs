//! Cases C1 to C4: standard input is empty unless asked for, and then it is exactly what was given.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lodge_tests::binary;
use lodge_tests::daemon::Daemon;
use sha2::{Digest, Sha256};
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

/// Commands that read standard input when they have no file see its end at once and do not wait for the timeout.
#[tokio::test(flavor = "multi_thread")]
async fn case_c1_readers_of_stdin_end_at_once() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("c1").await?;
    for (script, code) in [("cat", 0), ("grep x", 1), ("sed s/a/b/", 0), ("python3", 0)] {
        let ran = room.run(script).timeout(Duration::from_secs(20)).await?;
        ran.exited(code).with_context(|| script.to_owned())?;
        ensure!(
            ran.took < Duration::from_secs(2),
            "{script} took {:?}",
            ran.took
        );
        ensure!(ran.stdout().is_empty(), "{script}: {}", ran.story());
    }
    Ok(())
}

/// The command line, started with a standard input that is open and silent (as in `sleep 1000 | lodge run …`), prints
/// what the command prints and exits at once.
#[tokio::test(flavor = "multi_thread")]
async fn case_c2_cli_does_not_wait_for_a_silent_stdin() -> Result<()> {
    let daemon = Daemon::new().await?;
    daemon.api().room("c2").await?;
    let mut child = tokio::process::Command::new(binary::path("lodge")?)
        .args(["run", "-s", "c2", "--", "echo", "hi"])
        .env("LODGE_ENDPOINT", daemon.endpoint())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    // Held open, and never written to, until the command has ended.
    let silent = child.stdin.take();
    let status = timeout(Duration::from_secs(10), child.wait())
        .await
        .context("it waits for stdin")??;
    drop(silent);
    let mut out = String::new();
    child
        .stdout
        .take()
        .context("piped")?
        .read_to_string(&mut out)
        .await?;
    ensure!(status.success() && out == "hi\n", "{status}, {out:?}");
    Ok(())
}

/// 10 MiB through standard input arrive exactly.
#[tokio::test(flavor = "multi_thread")]
async fn case_c3_ten_mebibytes_through_stdin() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("c3").await?;
    let data: Vec<u8> = (0..10u32 << 20)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let mut live = room.run("sha256sum").start_with_stdin().await?;
    for piece in data.chunks(60_001) {
        live.write(piece).await?;
    }
    live.close_stdin().await?;
    let result = live.end().await?;
    ensure!(result.exit_code == 0, "{result:?}");
    let expected = format!("{}  -\n", hex::encode(Sha256::digest(&data)));
    ensure!(
        live.stdout == expected.as_bytes(),
        "{}",
        String::from_utf8_lossy(&live.stdout)
    );
    let small = &data[..300_000];
    let ran = room.run("sha256sum").stdin(small).await?;
    ensure!(ran.ok()? == format!("{}  -", hex::encode(Sha256::digest(small))));
    Ok(())
}

/// A consumer that takes one byte and leaves is no error, however much was offered.
#[tokio::test(flavor = "multi_thread")]
async fn case_c3_consumer_may_leave_early() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("c3").await?;
    let mut live = room.run("head -c 1").start_with_stdin().await?;
    for _ in 0..160 {
        // The daemon may have closed the request stream by then; that is its right.
        if live.write(&[b'x'; 64 << 10]).await.is_err() {
            break;
        }
    }
    let _ = live.close_stdin().await;
    let result = live.end().await?;
    ensure!(result.exit_code == 0 && live.stdout == b"x", "{result:?}");
    let ran = room.run("head -c 1").stdin(vec![b'y'; 1 << 20]).await?;
    ensure!(ran.exited(0)?.stdout() == b"y");
    Ok(())
}

/// A child that reads its standard input sees what was given and never a byte of Lodge's own protocol.
#[tokio::test(flavor = "multi_thread")]
async fn case_c4_stdin_is_the_callers_alone() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("c4").await?;
    let reader = "readlink /proc/self/fd/0 >&2; cat";
    let none = room.run(reader).await?;
    ensure!(
        none.exited(0)?.stdout().is_empty() && none.errors() == "/dev/null\n",
        "{}",
        none.story()
    );
    let given = room.run(reader).stdin(&b"exactly\0this"[..]).await?;
    ensure!(
        given.exited(0)?.stdout() == b"exactly\0this",
        "{}",
        given.story()
    );
    let mut live = room.run("cat; echo -n .").start_with_stdin().await?;
    live.write(b"piece by ").await?;
    live.write(b"piece").await?;
    live.close_stdin().await?;
    live.end().await?;
    ensure!(live.stdout == b"piece by piece.");
    Ok(())
}
