//! Cases D1 to D3: each run is a fresh shell that gets its script byte by byte.

use anyhow::{Context, Result, ensure};
use lodge_tests::daemon::Daemon;
use lodge_tests::room::{Ran, Room};

/// What a script does to its own shell ends with that shell: the exit code is right and the next run does not notice.
#[tokio::test(flavor = "multi_thread")]
async fn case_d1_shell_state_ends_with_the_run() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("d1").await?;
    for (script, code, out) in [
        ("echo x; exit 3", 3, "x\n"),
        ("set -e; false; echo never", 1, ""),
        ("exec true; echo never", 0, ""),
        ("trap 'exit 9' EXIT TERM; true", 9, ""),
        ("cd /; export LEAK=1; alias ls=false", 0, ""),
        ("ulimit -n 16; ulimit -f 0; umask 777; true", 0, ""),
        ("set -o pipefail; false | true", 1, ""),
    ] {
        let ran = room.run(script).await?;
        ensure!(
            ran.exited(code).with_context(|| script.to_owned())?.text() == out,
            "{}",
            ran.story()
        );
        let next = room
            .run("pwd; ulimit -n; umask; echo \"${LEAK-unset}\"; set -o | grep -c 'pipefail.*on'")
            .await?;
        ensure!(
            next.code() == 1,
            "grep finds pipefail off: {}",
            next.story()
        );
        ensure!(
            next.text() == "/home/user\n4096\n0022\nunset\n0\n",
            "after {script:?}: {}",
            next.story()
        );
    }
    Ok(())
}

/// The script runs as the host's own bash would run it.
async fn as_on_the_host(room: &Room, script: &str) -> Result<Ran> {
    let host = tokio::process::Command::new("bash")
        .arg("-c")
        .arg(script)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("LANG", "C.UTF-8")
        .output()
        .await?;
    let ran = room.run(script).await?;
    ensure!(
        ran.stdout() == host.stdout,
        "{script:?}: the host wrote {:?}, {}",
        host.stdout,
        ran.story()
    );
    ensure!(
        Some(ran.code()) == host.status.code(),
        "{script:?}: the host says {}, {}",
        host.status,
        ran.story()
    );
    Ok(ran)
}

/// Quotes, back-ticks, dollar signs, here-documents, CRLF, a backslash at the end and no final newline arrive as they
/// were written.
#[tokio::test(flavor = "multi_thread")]
async fn case_d2_scripts_run_byte_exactly() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("d2").await?;
    for script in [
        "cat <<'EOF'\n\"double\" 'single' `back` $HOME $(id) \\ \\n\n\ttab\nEOF\n",
        "cat <<EOF\n$((6 * 7)) \"q\" 'q' \\`not run\\` \\$HOME `echo run`\nEOF",
        "printf '%s|' a\\",
        "printf '%s|' \"a\r\nb\"\nprintf '%s' c\r\n",
        "echo no final newline",
        "echo 'é€😀' | od -An -tx1",
        "# only a comment",
        "\n\n  \t\n",
        "echo a;\\\necho b",
        "printf '%s' \"$0\" | wc -c >/dev/null; printf '<%s>' \"$@\"",
    ] {
        as_on_the_host(&room, script).await?;
    }
    Ok(())
}

/// A script of 2 MiB, far above what one argument may be, is no "argument list too long", and is whole.
#[tokio::test(flavor = "multi_thread")]
async fn case_d2_two_mebibyte_script_runs() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("d2").await?;
    let line = "0123456789abcdef".repeat(4);
    let body: String = (0..32_768).map(|n| format!("{line}{n}\n")).collect();
    let script =
        format!("cat > big <<'EOF'\n{body}EOF\nwc -c < big; sha256sum < big | cut -c1-64; exit 5");
    ensure!(script.len() > 2 << 20);
    let ran = room.run(script).await?;
    ran.exited(5)?;
    let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(body.as_bytes()));
    ensure!(
        ran.text() == format!("{}\n{digest}\n", body.len()),
        "{}",
        ran.story()
    );
    Ok(())
}

/// A command in the middle of a script that reads standard input takes nothing of the script: the rest still runs.
/// That holds with input and without, and for a script too long for an argument.
#[tokio::test(flavor = "multi_thread")]
async fn case_d3_reader_in_the_middle_leaves_the_script_whole() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("d3").await?;
    let script = "echo first\ncat\ngrep -c x || true\necho rest\n";
    let ran = room.run(script).await?;
    ensure!(
        ran.exited(0)?.text() == "first\n0\nrest\n",
        "{}",
        ran.story()
    );
    let ran = room.run(script).stdin("given\n").await?;
    ensure!(
        ran.exited(0)?.text() == "first\ngiven\n0\nrest\n",
        "{}",
        ran.story()
    );
    let long = format!(": '{}'\n{script}", "x".repeat(200_000));
    let ran = room.run(long.clone()).await?;
    ensure!(
        ran.exited(0)?.text() == "first\n0\nrest\n",
        "{}",
        ran.story()
    );
    let ran = room.run(long).stdin("given\n").await?;
    ensure!(
        ran.exited(0)?.text() == "first\ngiven\n0\nrest\n",
        "{}",
        ran.story()
    );
    Ok(())
}
