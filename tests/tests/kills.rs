//! The daemon is killed again and again while a command writes as fast as it can, and every byte is compared: each is a
//! fixed function of its offset, so that one lost or doubled anywhere shows in all that follow.
//!
//! `LODGE_KILLS` sets how often.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::arena::{leaves_nothing, no_timeout};
use lodge_tests::daemon::Daemon;
use lodge_tests::room::Room;
use lodge_tests::wait::until;
use nix::sys::prctl;

/// Kills where nobody says otherwise.
const KILLS: u32 = 200;
/// Kills where nobody reaps: each leaves a dead launcher.
const KILLS_UNREAPED: u32 = 20;
/// The daemon is killed at most so long after it was ready.
const LIVES_AT_MOST_MICROS: u64 = 30_000;
/// A log grows within this time, on a busy machine too.
const GROWS_WITHIN: Duration = Duration::from_secs(20);
/// Bytes of a number.
const WORD: u64 = 8;
/// Bytes of one look at the end of a log.
const GLANCE: u64 = 64 << 10;

/// Writes 0, 1, 2 … as 64-bit numbers until the file `stop` is there, as fast as it can: the pipe is always full.
const FLOOD: &str = "
import array, os
n = 0
while not os.path.exists('stop'):
    block = memoryview(array.array('Q', range(n, n + 8192)).tobytes())
    while block:
        block = block[os.write(1, block):]
    n += 8192
open('flooded', 'w').write(str(n * 8))
";
/// The same at a pace at which the whole log is kept.
const TRICKLE: &str = "
import array, os, time
n = 0
while not os.path.exists('stop'):
    block = memoryview(array.array('Q', range(n, n + 97)).tobytes())
    while block:
        block = block[os.write(1, block):]
    n += 97
    time.sleep(0.004)
open('trickled', 'w').write(str(n * 8))
";

/// Random enough for moments, and the same each time.
struct Moments(u64);

impl Moments {
    fn next(&mut self) -> Duration {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        Duration::from_micros((self.0 >> 33) % LIVES_AT_MOST_MICROS)
    }
}

/// Fails unless these bytes are the ones that belong at `offset`.
fn right_at(offset: u64, bytes: &[u8]) -> Result<()> {
    for (at, byte) in (offset..).zip(bytes) {
        let word = (at / WORD).to_le_bytes();
        let wanted = word[usize::try_from(at % WORD)?];
        ensure!(*byte == wanted, "byte {at} is {byte}, not {wanted}");
    }
    Ok(())
}

/// Compares the end of a log; how long it is.
async fn end_is_right(room: &Room, run: &str) -> Result<u64> {
    let total = room
        .read_log(run, pb::Stream::Stdout, 0, 1)
        .await?
        .total_bytes;
    let from = total.saturating_sub(GLANCE);
    let limit = u32::try_from(GLANCE)?;
    let part = room.read_log(run, pb::Stream::Stdout, from, limit).await?;
    right_at(part.offset, &part.data)?;
    Ok(total)
}

/// Compares every byte of a log that is kept; how many those are, and how long the stream was.
async fn all_is_right(room: &Room, run: &str) -> Result<(u64, u64)> {
    let (mut at, mut kept) = (0, 0);
    loop {
        let part = room.read_log(run, pb::Stream::Stdout, at, 1 << 20).await?;
        right_at(part.offset, &part.data)?;
        kept += part.data.len() as u64;
        at = part.offset + part.data.len() as u64;
        if at >= part.total_bytes {
            return Ok((kept, part.total_bytes));
        }
        ensure!(
            !part.data.is_empty(),
            "nothing at {at} of {}",
            part.total_bytes
        );
    }
}

async fn started(room: &Room, program: &str) -> Result<String> {
    let run = room.python(program).with(no_timeout).start().await?;
    Ok(run.run_id)
}

/// Waits until the log has all that its command says it wrote; how much that was.
async fn written(room: &Room, run: &str, told_in: &str) -> Result<u64> {
    let told = until("the command has ended", GROWS_WITHIN, || async {
        let told = room.run(format!("cat {told_in} || true")).await?.text();
        Ok(told.trim().parse::<u64>().ok())
    })
    .await?;
    until("its log is whole", GROWS_WITHIN, || async {
        Ok((end_is_right(room, run).await? >= told).then_some(()))
    })
    .await?;
    Ok(told)
}

async fn killed(kills: u32) -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let room = daemon.api().room("flood").await?;
    let base = room.uid_base(&daemon.cgroup())?;
    let flood = started(&room, FLOOD).await?;
    let trickle = started(&room, TRICKLE).await?;
    let mut moments = Moments(1);
    let mut seen = 0;
    for kill in 0..kills {
        tokio::time::sleep(moments.next()).await;
        daemon.kill9()?;
        daemon.start_again()?;
        let grown = end_is_right(&room, &flood).await;
        let grown = grown.with_context(|| format!("after kill {kill}"))?;
        ensure!(grown >= seen, "it shrank from {seen} to {grown}");
        seen = grown;
    }
    until("it still grows", GROWS_WITHIN, || async {
        Ok((end_is_right(&room, &flood).await? > seen).then_some(()))
    })
    .await?;
    room.run("touch stop").await?.exited(0)?;

    let flooded = written(&room, &flood, "flooded").await?;
    let (kept, total) = all_is_right(&room, &flood).await?;
    ensure!(
        total == flooded,
        "{total} bytes are counted, {flooded} were written"
    );
    ensure!(
        kept >= total.min(30 << 20),
        "{kept} of {total} bytes are kept"
    );
    let trickled = written(&room, &trickle, "trickled").await?;
    let whole = all_is_right(&room, &trickle).await?;
    ensure!(whole == (trickled, trickled), "{whole:?} of {trickled}");
    room.delete().await?;
    leaves_nothing(&daemon, room.id(), base).await
}

fn kills(usual: u32) -> Result<u32> {
    match std::env::var("LODGE_KILLS") {
        Ok(text) => Ok(text.parse()?),
        Err(_) => Ok(usual),
    }
}

/// The daemon is killed 200 times during a full-rate write and every byte compares.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d01_killed_200_times_during_a_full_rate_write() -> Result<()> {
    killed(kills(KILLS)?).await
}

/// The same below a parent that reaps nobody: dead launchers and holders stay, and nothing waits for them to go.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d01_killed_below_a_parent_that_does_not_reap() -> Result<()> {
    // Orphans of the daemon are ours from here on, and we never wait for them.
    prctl::set_child_subreaper(true)?;
    killed(kills(KILLS_UNREAPED)?.min(KILLS_UNREAPED)).await
}
