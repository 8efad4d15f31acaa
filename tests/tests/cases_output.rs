//! Cases E1 to E6: output is counted exactly, cut honestly, and never invented or mangled.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::daemon::Daemon;
use lodge_tests::host;
use lodge_tests::room::Room;
use lodge_tests::wait::until;
use sha2::{Digest, Sha256};
use tokio::task::JoinSet;

const MIB: usize = 1 << 20;

/// 100,000 characters of three bytes each, written in pieces of seven bytes, come back as exactly that many, by the
/// unary call and by the stream.
#[tokio::test(flavor = "multi_thread")]
async fn case_e1_multibyte_output_in_odd_pieces() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("e1").await?;
    let program =
        "import os\nb = '€'.encode() * 100000\nfor i in range(0, len(b), 7): os.write(1, b[i:i+7])";
    let expected = "€".repeat(100_000);
    let ran = room.python(program).await?;
    ensure!(ran.exited(0)?.stdout() == expected.as_bytes());
    let mut live = room.python(program).start().await?;
    live.end().await?;
    ensure!(String::from_utf8(live.stdout)? == expected);
    Ok(())
}

/// Numbered lines with a three-byte character in each, about 20 MB.
const TWENTY_MEGABYTES: &str =
    "import sys\nfor i in range(1000000): sys.stdout.write('%07d € 789 x\\n' % i)";

fn twenty_megabytes() -> Vec<u8> {
    (0..1_000_000)
        .flat_map(|i| format!("{i:07} € 789 x\n").into_bytes())
        .collect()
}

/// 20 MB with a budget of 1 MiB: the head and the tail are there, the rest is counted exactly, no character is cut in
/// two, and the whole of it can be read from the log range by range.
#[tokio::test(flavor = "multi_thread")]
async fn case_e2_head_and_tail_of_twenty_megabytes() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("e2").await?;
    let expected = twenty_megabytes();
    let ran = room
        .python(TWENTY_MEGABYTES)
        .with(|s| s.max_output_bytes = Some(MIB as i64))
        .await?;
    ran.exited(0)?;
    let out = &ran.out;
    ensure!(
        out.total_bytes == expected.len() as u64,
        "total_bytes is {}",
        out.total_bytes
    );
    ensure!(ran.result.stdout_bytes == out.total_bytes);
    ensure!(out.head.len() + out.tail.len() <= MIB);
    ensure!(
        out.head.len() + out.tail.len() > MIB * 9 / 10,
        "{} + {}",
        out.head.len(),
        out.tail.len()
    );
    ensure!(out.dropped_bytes == out.total_bytes - (out.head.len() + out.tail.len()) as u64);
    ensure!(expected.starts_with(&out.head) && expected.ends_with(&out.tail));
    ensure!(
        out.tail.len() > out.head.len(),
        "the tail gets the larger part"
    );
    std::str::from_utf8(&out.head).context("the head is cut in a character")?;
    std::str::from_utf8(&out.tail).context("the tail is cut in a character")?;
    let log = room
        .whole_log(&ran.result.run_id, pb::Stream::Stdout)
        .await?;
    ensure!(
        Sha256::digest(&log) == Sha256::digest(&expected),
        "the log differs; it has {} bytes",
        log.len()
    );
    Ok(())
}

/// Wherever the budget ends, a cut never falls inside a character, and the counts stay exact.
#[tokio::test(flavor = "multi_thread")]
async fn case_e2_cuts_fall_between_characters() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("e2").await?;
    for budget in 3000..3012 {
        let ran = room
            .run("printf '€%.0s' {1..5000}")
            .with(|s| s.max_output_bytes = Some(budget))
            .await?;
        let out = &ran.exited(0)?.out;
        ensure!(
            std::str::from_utf8(&out.head).is_ok(),
            "budget {budget}: the head is cut"
        );
        ensure!(
            std::str::from_utf8(&out.tail).is_ok(),
            "budget {budget}: the tail is cut"
        );
        let kept = (out.head.len() + out.tail.len()) as u64;
        ensure!(out.total_bytes == 15_000 && out.dropped_bytes == 15_000 - kept);
        ensure!(
            kept <= budget.cast_unsigned() && kept + 8 > budget.cast_unsigned(),
            "{kept} of {budget}"
        );
    }
    Ok(())
}

/// A few very long lines and the error at the very end: the error is kept.
#[tokio::test(flavor = "multi_thread")]
async fn case_e3_error_after_very_long_lines_is_kept() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("e3").await?;
    let program = "import sys\nfor c in 'abc': sys.stderr.write(c * 2000000 + '\\n')\n\
        sys.stderr.write('fatal: the disk is on fire')\nsys.exit(4)";
    let ran = room.python(program).await?;
    ran.exited(4)?;
    ensure!(ran.err.tail.ends_with(b"ccc\nfatal: the disk is on fire"));
    ensure!(ran.err.total_bytes == 3 * 2_000_001 + 26);
    Ok(())
}

/// Empty lines, NUL bytes and invalid UTF-8 come back byte by byte; the client's text helper replaces what is not
/// UTF-8, counts it, and never fails.
#[tokio::test(flavor = "multi_thread")]
async fn case_e4_any_byte_comes_back() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("e4").await?;
    ensure!(room.run("printf 'a\\n\\n\\nb'").await?.stdout() == b"a\n\n\nb");
    ensure!(room.run("printf 'a\\0b\\0'").await?.stdout() == b"a\0b\0");
    let every: Vec<u8> = (0..=255).collect();
    let ran = room
        .python("import os; os.write(1, bytes(range(256))); os.write(2, bytes(range(256)))")
        .await?;
    ensure!(ran.stdout() == every && ran.err.head == every);
    let client = lodge_client::Client::connect(&daemon.endpoint()).await?;
    let output = client
        .sandbox("e4")
        .await?
        .run("printf 'ok\\xff\\xfe'")
        .await?;
    let text = output.stdout.text();
    ensure!(
        text.as_str() == "ok\u{fffd}\u{fffd}" && text.replacements == 2,
        "{text:?}"
    );
    Ok(())
}

/// Both streams at once: each is exact, by the unary call and by the stream. (Pipes do not record the order between
/// two of them; what the API promises is the order within each.)
#[tokio::test(flavor = "multi_thread")]
async fn case_e5_interleaved_streams_are_each_exact() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("e5").await?;
    let program = "import os\nfor i in range(20000):\n os.write(1, b'out %d\\n' % i)\n os.write(2, b'err %d\\n' % i)";
    let lines = |word: &str| -> Vec<u8> {
        (0..20_000)
            .flat_map(|i| format!("{word} {i}\n").into_bytes())
            .collect()
    };
    let ran = room.python(program).await?;
    ensure!(ran.exited(0)?.stdout() == lines("out") && ran.err.head == lines("err"));
    let mut live = room.python(program).start().await?;
    let result = live.end().await?;
    ensure!(live.stdout == lines("out") && live.stderr == lines("err"));
    ensure!(result.stdout_bytes == live.stdout.len() as u64);
    ensure!(result.stderr_bytes == live.stderr.len() as u64);
    Ok(())
}

/// Writes as fast as it can for five seconds and says at the end how much the kernel took.
const FLOOD: &str = "import os, sys, time\nb = b'y\\n' * 32768\nn = 0\nend = time.time() + 5\n\
    while time.time() < end: n += os.write(1, b)\nsys.stderr.write(str(n))";

/// Five seconds of flood: the command is not killed for it, the totals are exact, and neither the daemon nor the
/// sandbox's PID 1 grows.
#[tokio::test(flavor = "multi_thread")]
async fn case_e6_flood_is_counted_in_bounded_memory() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("e6").await?;
    room.run("true").await?.exited(0)?;
    let holder = room.holder_pid(&daemon.cgroup())?;
    let pids = [daemon.pid()?, holder];
    let mut before = Vec::new();
    for pid in pids {
        host::reset_peak_memory(pid)?;
        before.push(host::memory_field(pid, "VmHWM")?);
    }
    let ran = room.python(FLOOD).timeout(Duration::from_secs(30)).await?;
    ran.exited(0)?;
    let written: u64 = ran
        .errors()
        .parse()
        .context("the flood says how much it wrote")?;
    ensure!(written > 64 << 20, "only {written} bytes in five seconds");
    ensure!(
        ran.out.total_bytes == written,
        "total_bytes is {}, written {written}",
        ran.out.total_bytes
    );
    let kept = (ran.out.head.len() + ran.out.tail.len()) as u64;
    ensure!(ran.out.dropped_bytes == written - kept);
    for (pid, before) in pids.into_iter().zip(before) {
        let peak = host::memory_field(pid, "VmHWM")?;
        ensure!(
            peak < before + (16 << 20),
            "process {pid} grew from {before} to {peak} bytes"
        );
    }
    Ok(())
}

/// How many runs have said "hi" by now.
async fn runs_that_said_hi(room: &Room) -> Result<usize> {
    let listed = room.processes().await?;
    let runs: BTreeSet<String> = listed.into_iter().map(|p| p.run_id).collect();
    let mut said = 0;
    for run in runs {
        let log = room.read_log(&run, pb::Stream::Stdout, 0, 0).await?;
        said += usize::from(&log.data[..] == b"hi\n");
    }
    Ok(said)
}

/// Deleting a sandbox ends its runs and takes their logs; who waits for a result gets it all the same, with the output.
#[tokio::test(flavor = "multi_thread")]
async fn a_delete_leaves_waiting_callers_their_output() -> Result<()> {
    const CALLS: usize = 8;
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("deleted").await?;
    let mut calls = JoinSet::new();
    for _ in 0..CALLS {
        calls.spawn(room.run("echo hi; sleep 60").send());
    }
    until("all have said hi", Duration::from_secs(20), || async {
        Ok((runs_that_said_hi(&room).await? == CALLS).then_some(()))
    })
    .await?;
    room.delete().await?;
    while let Some(call) = calls.join_next().await {
        let ran = call??;
        ensure!(
            ran.reason() == pb::EndReason::SandboxStopped,
            "{}",
            ran.story()
        );
        ensure!(ran.text() == "hi\n", "{}", ran.story());
    }
    Ok(())
}
