//! What a run is good for, each with a check of what came back: streams, secrets, timeouts, logs, callers who go away.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::room::Room;
use lodge_tests::wait::until;

/// One use of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Errand {
    /// Output as it is written.
    Stream,
    /// A value that must not be seen.
    Secret,
    /// A command that has to be ended.
    Timeout,
    /// A caller who goes away; the run goes on.
    Detached,
    /// The log of a run that has ended.
    Log,
    /// More output than is given back.
    Flood,
}

/// How often each one is done.
pub(crate) const WEIGHTS: &[(u64, Errand)] = &[
    (4, Errand::Stream),
    (3, Errand::Secret),
    (1, Errand::Timeout),
    (3, Errand::Detached),
    (2, Errand::Log),
    (1, Errand::Flood),
];

/// Lines that a stream brings.
const LINES: usize = 200;
/// The time limit of a command that never ends.
const LIMIT: Duration = Duration::from_millis(200);
/// Bytes of a flood.
const FLOOD_BYTES: u64 = 4 << 20;
/// A detached run of a fifth of a second has ended within this time.
const ENDED_WITHIN: Duration = Duration::from_secs(30);

impl Errand {
    /// Does it, and checks what comes back.
    pub(crate) async fn run(self, room: &Room) -> Result<()> {
        match self {
            Self::Stream => stream(room).await,
            Self::Secret => secret(room).await,
            Self::Timeout => timeout(room).await,
            Self::Detached => detached(room).await,
            Self::Log => log(room).await,
            Self::Flood => flood(room).await,
        }
        .with_context(|| format!("{self:?} in {}", room.info().name))
    }
}

async fn stream(room: &Room) -> Result<()> {
    let script = format!("for i in $(seq {LINES}); do echo line $i; done");
    let mut live = room.run(script).start().await?;
    let result = live.end().await?;
    ensure!(result.exit_code == 0, "{result:?}");
    let expected: String = (1..=LINES).map(|i| format!("line {i}\n")).collect();
    ensure!(live.stdout == expected.as_bytes(), "the stream differs");
    Ok(())
}

async fn secret(room: &Room) -> Result<()> {
    let ran = room
        .run("echo $KEY; sleep 100 &")
        .secret("KEY", "not-for-you")
        .await?;
    ensure!(ran.ok()? == "«KEY»", "{}", ran.story());
    Ok(())
}

async fn timeout(room: &Room) -> Result<()> {
    let ran = room.run("echo begun; sleep 100").timeout(LIMIT).await?;
    ensure!(ran.timed_out()?.text() == "begun\n", "{}", ran.story());
    Ok(())
}

async fn detached(room: &Room) -> Result<()> {
    let run_id = room.run("sleep 0.2; echo done").start().await?.run_id;
    until("the detached run has ended", ENDED_WITHIN, || async {
        let log = room.whole_log(&run_id, pb::Stream::Stdout).await?;
        Ok((log == b"done\n").then_some(()))
    })
    .await
}

async fn log(room: &Room) -> Result<()> {
    let ran = room.run("echo one; echo two >&2").await?;
    let run_id = &ran.exited(0)?.result.run_id;
    for (stream, expected) in [(pb::Stream::Stdout, "one\n"), (pb::Stream::Stderr, "two\n")] {
        let log = room.whole_log(run_id, stream).await?;
        ensure!(log == expected.as_bytes(), "the log is {log:?}");
    }
    Ok(())
}

async fn flood(room: &Room) -> Result<()> {
    let ran = room.run(format!("head -c {FLOOD_BYTES} /dev/zero")).await?;
    let out = &ran.exited(0)?.out;
    ensure!(out.total_bytes == FLOOD_BYTES, "{} bytes", out.total_bytes);
    ensure!(
        out.dropped_bytes + (out.head.len() + out.tail.len()) as u64 == FLOOD_BYTES,
        "the parts do not add up"
    );
    Ok(())
}
