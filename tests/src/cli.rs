//! The `lodge` command as a user runs it: a process with arguments, an environment and pipes.

use std::process::{ExitStatus, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::timeout;

use crate::binary;
use crate::daemon::Daemon;

/// No call of the command line in a test takes longer.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

/// A `lodge` command line that was run.
#[derive(Debug)]
pub struct Said {
    /// How it ended.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error as text.
    pub stderr: String,
}

/// The command with these arguments, for this daemon.
pub fn command(daemon: &Daemon, args: &[&str]) -> Result<Command> {
    let mut command = Command::new(binary::path("lodge")?);
    command
        .args(args)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("LODGE_ENDPOINT", daemon.endpoint());
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    Ok(command)
}

/// Runs `lodge` with these arguments.
pub async fn lodge(daemon: &Daemon, args: &[&str]) -> Result<Said> {
    run(command(daemon, args)?).await
}

/// Runs a prepared command.
pub async fn run(mut command: Command) -> Result<Said> {
    Said::of(
        timeout(ENDS_WITHIN, command.output())
            .await
            .context("lodge does not end")??,
    )
}

/// Runs `lodge` with these arguments and this standard input.
pub async fn with_stdin(daemon: &Daemon, args: &[&str], input: &[u8]) -> Result<Said> {
    let mut child = command(daemon, args)?.stdin(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().context("piped")?;
    let input = input.to_vec();
    // A consumer that leaves early closes the pipe; that is no failure of the test.
    let writing = tokio::spawn(async move { stdin.write_all(&input).await });
    let output = timeout(ENDS_WITHIN, child.wait_with_output())
        .await
        .context("lodge does not end")??;
    let _ = writing.await?;
    Said::of(output)
}

impl Said {
    fn of(output: Output) -> Result<Self> {
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        Ok(Self {
            status: output.status,
            stdout: output.stdout,
            stderr,
        })
    }

    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Fails unless it exited with this code.
    pub fn exited(&self, code: i32) -> Result<&Self> {
        ensure!(
            self.status.code() == Some(code),
            "expected {code}, got {}: {}{}",
            self.status,
            self.text(),
            self.stderr
        );
        Ok(self)
    }

    /// Standard output as JSON.
    pub fn json(&self) -> Result<serde_json::Value> {
        serde_json::from_slice(&self.stdout).with_context(|| format!("no JSON: {}", self.text()))
    }
}
