//! Cases A8, B4, B6, E7 and E8: callers go and come back, connections and daemons break, and a run is told whole.

use std::future::IntoFuture;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lodge_client::{Client, EndReason, Event, RunStream};
use lodge_proto::v1 as pb;
use lodge_tests::attached::Attached;
use lodge_tests::cli;
use lodge_tests::daemon::Daemon;
use lodge_tests::proxy::Proxy;
use lodge_tests::room::Room;
use lodge_tests::wait::{SOON, until};
use tokio::io::AsyncReadExt;

/// So many numbered lines, slowly enough that a test can break in.
fn numbered(lines: usize) -> String {
    format!(
        "import time\nfor i in range({lines}):\n print('line %06d' % i, flush=i % 100 == 0)\n if i % 300 == 0: time.sleep(0.01)"
    )
}

/// Writes the same, and after each sixth but the last waits for a file, `go-0` to `go-4`.
fn numbered_by_sixths(lines: usize) -> String {
    let sixth = lines / 6;
    format!(
        "import os, time\nfor i in range({lines}):\n last = i % {sixth} == {sixth} - 1\n print('line %06d' % i, flush=last)\n while last and i // {sixth} < 5 and not os.path.exists('go-%d' % (i // {sixth})): time.sleep(0.005)"
    )
}

/// What [`numbered`] writes.
fn expected(lines: usize) -> Vec<u8> {
    (0..lines)
        .flat_map(|i| format!("line {i:06}\n").into_bytes())
        .collect()
}

/// Fails unless these are the numbered lines; says where they differ first.
fn same(got: &[u8], lines: usize) -> Result<()> {
    let want = expected(lines);
    if got == want {
        return Ok(());
    }
    let differ = got.iter().zip(&want).position(|(a, b)| a != b);
    bail!(
        "{} of {} bytes, the first other one at {differ:?}",
        got.len(),
        want.len()
    );
}

async fn client(endpoint: &str) -> Result<Client> {
    Ok(Client::connect(endpoint).await?)
}

/// The client's process is killed in the middle of a run: the run goes on, can be attached to from its beginning, and
/// ends by its own deadline.
#[tokio::test(flavor = "multi_thread")]
async fn case_a8_run_outlives_a_killed_client() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("a8").await?;
    let mut lodge = cli::command(
        &daemon,
        &["run", "-s", "a8", "-t", "6s", "echo begun; sleep 300"],
    )?
    .spawn()?;
    let mut out = lodge.stdout.take().context("piped")?;
    let mut begun = [0; 6];
    out.read_exact(&mut begun).await?;
    lodge.start_kill()?;
    lodge.wait().await?;
    let processes = room.processes().await?;
    let run = processes
        .iter()
        .find(|p| p.run_live)
        .context("it went with its client")?;
    let mut attached = Attached::new(&room, &run.run_id, [0, 0]).await?;
    let result = attached.end().await?;
    ensure!(result.end_reason() == pb::EndReason::TimedOut && result.exit_code == 124);
    ensure!(attached.text() == b"begun\n");
    ensure!(
        room.processes_of(&run.run_id).await?.is_empty(),
        "it left something"
    );
    Ok(())
}

/// A stream is cut in the middle. A client that does not reconnect gets an error, never an end; attaching from the bytes
/// that it has gives the rest, with nothing lost and nothing twice.
#[tokio::test(flavor = "multi_thread")]
async fn case_b4_stream_cut_in_the_middle() -> Result<()> {
    const LINES: usize = 20_000;
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("b4").await?;
    let proxy = Proxy::new(&daemon.socket(), None)?;
    let far = client(&proxy.endpoint())
        .await?
        .reconnect_within(Duration::ZERO);
    let run = far.at("b4").run_argv(["python3", "-c", &numbered(LINES)]);
    let mut events = run.stream().await?;
    let run_id = events.run_id().to_owned();
    let mut got = Vec::new();
    let error = loop {
        match events.next().await.context("it ended without a word")? {
            Ok(Event::Output { data, .. }) => {
                got.extend_from_slice(&data);
                if got.len() > 20_000 {
                    proxy.cut();
                }
            }
            Ok(Event::Exited(_)) => bail!("a stream that was cut ended as if its run had"),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    ensure!(
        matches!(error, lodge_client::Error::Transport(_)),
        "{error:?}"
    );
    ensure!(
        got.len() < expected(LINES).len(),
        "it was not cut in the middle"
    );
    let mut attached = Attached::new(&room, &run_id, [got.len() as u64, 0]).await?;
    ensure!(attached.end().await?.exit_code == 0);
    got.extend_from_slice(&attached.text());
    same(&got, LINES)
}

/// The same for a person: `lodge run` over a connection that is cut and cannot be made again is 125, never the command's
/// exit code.
#[tokio::test(flavor = "multi_thread")]
async fn case_b4_cut_for_good_is_no_exit_code_of_the_command() -> Result<()> {
    let daemon = Daemon::new().await?;
    daemon.api().room("b4").await?;
    let proxy = Proxy::new(&daemon.socket(), None)?;
    let mut command = cli::command(&daemon, &["run", "-s", "b4", "echo begun; sleep 20"])?;
    command.env("LODGE_ENDPOINT", proxy.endpoint());
    let mut lodge = command.spawn()?;
    let mut out = lodge.stdout.take().context("piped")?;
    out.read_exact(&mut [0; 6]).await?;
    // With the proxy goes its socket.
    drop(proxy);
    let said = tokio::time::timeout(Duration::from_secs(60), lodge.wait_with_output()).await??;
    let stderr = String::from_utf8_lossy(&said.stderr);
    ensure!(
        said.status.code() == Some(125),
        "{:?}: {stderr}",
        said.status
    );
    ensure!(stderr.contains("lost sight of run"), "{stderr}");
    Ok(())
}

/// A quiet command through a proxy that cuts connections after five seconds of silence stays connected for thirty.
#[tokio::test(flavor = "multi_thread")]
async fn case_b6_quiet_command_through_an_impatient_proxy() -> Result<()> {
    let daemon = Daemon::new().await?;
    let proxy = Proxy::new(&daemon.socket(), Some(Duration::from_secs(5)))?;
    let far = client(&proxy.endpoint()).await?;
    let sandbox = far.sandbox("b6").await?;
    let before = proxy.connections();
    let out = sandbox.run("sleep 30; echo still here").await?;
    ensure!(out.stdout.text().as_str() == "still here\n" && out.success());
    ensure!(
        proxy.connections() == before,
        "{} connections were made anew",
        proxy.connections() - before
    );
    Ok(())
}

/// Reads to the end; cuts the connection each time that another sixth has come.
async fn collect_with_cuts(
    events: &mut RunStream,
    proxy: &Proxy,
    room: &Room,
    total: usize,
) -> Result<Vec<u8>> {
    let (mut got, mut cuts) = (Vec::new(), 0);
    while let Some(event) = events.next().await {
        match event? {
            Event::Output { offset, data, .. } => {
                ensure!(offset == got.len() as u64, "{offset} after {}", got.len());
                got.extend_from_slice(&data);
                if cuts < 5 && got.len() >= (cuts + 1) * total / 6 {
                    proxy.cut();
                    // Only now is there more to come: what was cut is needed.
                    room.run(format!("touch go-{cuts}")).await?.exited(0)?;
                    cuts += 1;
                }
            }
            Event::Exited(outcome) => {
                ensure!(
                    outcome.success() && cuts == 5,
                    "{outcome:?} after {cuts} cuts"
                );
                return Ok(got);
            }
            Event::Gap { from, to, .. } => bail!("a gap from {from} to {to}"),
            Event::Started { .. } => {}
        }
    }
    bail!("it ended without a word")
}

/// The connection is cut five times in the middle of 30,000 numbered lines: the client reconnects by itself, and every
/// line comes once.
#[tokio::test(flavor = "multi_thread")]
async fn case_e7_every_line_once_over_five_cuts() -> Result<()> {
    const LINES: usize = 30_000;
    let daemon = Daemon::new().await?;
    let proxy = Proxy::new(&daemon.socket(), None)?;
    let far = client(&proxy.endpoint()).await?;
    let sandbox = far.sandbox("e7").await?;
    let room = daemon.api().room("e7").await?;
    let run = sandbox.run_argv(["python3", "-c", &numbered_by_sixths(LINES)]);
    let mut events = run.stream().await?;
    let got = collect_with_cuts(&mut events, &proxy, &room, expected(LINES).len()).await?;
    ensure!(
        proxy.connections() >= 6,
        "{} connections",
        proxy.connections()
    );
    same(&got, LINES)
}

/// Writes numbered lines of 16 bytes, 60 MB in all, and a last word.
const SIXTY_MEGABYTES: &str = "import sys\nw = sys.stdout.write\n\
    for i in range(3750000): w('%015d\\n' % i)\nw('done\\n')";

/// An offset that the log holds no more is answered with the gap, from and to; what follows it is exact, and so is what
/// came before it. `ReadLog`, `SearchLog` and `Attach` tell the same gap. The log keeps the first part and the last.
#[tokio::test(flavor = "multi_thread")]
async fn case_e8_offset_older_than_the_log_holds() -> Result<()> {
    const TOTAL: u64 = 60_000_005;
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("e8").await?;
    let ran = room.python(SIXTY_MEGABYTES).await?;
    let run_id = ran.exited(0)?.result.run_id.clone();
    let mut attached = Attached::new(&room, &run_id, [0, 0]).await?;
    ensure!(attached.end().await?.stdout_bytes == TOTAL);
    let [gap] = &attached.gaps[..] else {
        bail!("gaps {:?}", attached.gaps)
    };
    ensure!(
        gap.start == 8 << 20 && TOTAL - gap.end >= 22 << 20,
        "{gap:?}"
    );
    for (offset, piece) in &attached.stdout {
        exact(*offset, piece)?;
    }
    // Asked in the middle of the gap.
    let inside = gap.start + 1_000_000;
    let mut attached = Attached::new(&room, &run_id, [inside, 0]).await?;
    attached.end().await?;
    ensure!(
        attached.gaps.iter().eq(std::iter::once(&(inside..gap.end))),
        "{:?}",
        attached.gaps
    );
    let part = room
        .read_log(&run_id, pb::Stream::Stdout, inside, 64)
        .await?;
    let told = part.gap.context("ReadLog is silent about the gap")?;
    ensure!((told.from, told.to, part.offset) == (inside, gap.end, gap.end));
    exact(part.offset, &part.data)?;
    let (mut gaps, mut lines, mut next) = (Vec::new(), 0, Some(0));
    while let Some(offset) = next {
        let found = room.search(&run_id, |s| {
            (s.pattern, s.offset) = ("^done$".into(), offset);
        });
        let found = found.await?;
        gaps.extend(found.gaps.iter().map(|gap| gap.from..gap.to));
        lines += found.lines.len();
        ensure!(
            found.next_offset.is_none_or(|next| next > offset),
            "no progress"
        );
        next = found.next_offset;
    }
    ensure!(
        gaps == [gap.clone()] && lines == 1,
        "{gaps:?}, {lines} lines"
    );
    Ok(())
}

/// Fails unless these bytes are at their offset in [`SIXTY_MEGABYTES`].
fn exact(offset: u64, piece: &[u8]) -> Result<()> {
    let skip = usize::try_from(offset % 16)?;
    let lines = (offset / 16..=3_750_000).map(|i| match i {
        3_750_000 => "done\n".to_owned(),
        i => format!("{i:015}\n"),
    });
    let want = lines.flat_map(String::into_bytes).skip(skip);
    ensure!(
        want.take(piece.len()).eq(piece.iter().copied()),
        "other bytes at {offset}"
    );
    Ok(())
}

/// The end of a log by lines, and a search with context, as a caller sees them; with a secret in the output neither shows
/// it nor can find it.
#[tokio::test(flavor = "multi_thread")]
async fn tail_and_search_of_a_masked_log() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("grep").await?;
    let ran = room
        .run("for i in 1 2 3 4 5 6 7 8 9; do echo \"$i $TOKEN\"; done; echo ERROR at the end")
        .secret("TOKEN", "s3cr3t-value")
        .await?;
    let run_id = ran.exited(0)?.result.run_id.clone();
    let request = pb::ReadLogRequest {
        tail_lines: 2,
        ..room.log_request(&run_id)
    };
    let part = room.api().exec().read_log(request).await?.into_inner();
    ensure!(part.data == "9 «TOKEN»\nERROR at the end\n".as_bytes() && part.gap.is_none());
    ensure!(part.offset + part.data.len() as u64 == part.total_bytes);
    let found = room.search(&run_id, |s| {
        (s.pattern, s.ignore_case, s.before) = ("error".into(), true, 1);
    });
    let found = found.await?;
    let lines: Vec<_> = found
        .lines
        .iter()
        .map(|l| (&l.text[..], l.matched))
        .collect();
    ensure!(
        lines
            == [
                ("9 «TOKEN»".as_bytes(), false),
                (&b"ERROR at the end"[..], true)
            ]
    );
    ensure!(found.next_offset.is_none());
    let found = room
        .search(&run_id, |s| s.pattern = "s3cr3t".into())
        .await?;
    ensure!(found.lines.is_empty(), "a search finds the secret");
    Ok(())
}

/// `lodge run` goes on over a restart of the daemon in its middle, and its exit code is the command's.
#[tokio::test(flavor = "multi_thread")]
async fn lodge_run_goes_on_over_a_restart_of_the_daemon() -> Result<()> {
    const LINES: usize = 30_000;
    let mut daemon = Daemon::new().await?;
    daemon.api().room("over").await?;
    let script = numbered(LINES) + "\nimport sys\nsys.exit(7)";
    let mut lodge =
        cli::command(&daemon, &["run", "-s", "over", "python3", "-c", &script])?.spawn()?;
    let mut out = lodge.stdout.take().context("piped")?;
    let mut got = vec![0; 12];
    out.read_exact(&mut got).await?;
    daemon.kill9()?;
    daemon.start_again()?;
    out.read_to_end(&mut got).await?;
    let said = tokio::time::timeout(SOON, lodge.wait_with_output()).await??;
    let stderr = String::from_utf8_lossy(&said.stderr);
    ensure!(said.status.code() == Some(7), "{:?}: {stderr}", said.status);
    same(&got, LINES)
}

/// A client's stream goes on over five kills of the daemon, and every line comes once.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_stream_over_five_kills_of_the_daemon() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let near = client(&daemon.endpoint()).await?;
    let sandbox = near.sandbox("kills").await?;
    let script = "i=0; until [ -e stop ]; do echo $i; i=$((i + 1)); sleep 0.002; done; exit 5";
    let mut events = sandbox.run(script).stream().await?;
    let mut got = Vec::new();
    for _ in 0..5 {
        let enough = got.len() + 500;
        while got.len() < enough {
            take(&mut events, &mut got).await?;
        }
        daemon.kill9()?;
        daemon.start_again()?;
    }
    daemon
        .api()
        .room("kills")
        .await?
        .run("touch stop")
        .await?
        .exited(0)?;
    while take(&mut events, &mut got).await?.is_none() {}
    let text = String::from_utf8(got)?;
    for (number, line) in text.lines().enumerate() {
        ensure!(line == number.to_string(), "line {number} is {line:?}");
    }
    Ok(())
}

/// Takes an event; what the run exited with if it was the last one.
async fn take(events: &mut RunStream, got: &mut Vec<u8>) -> Result<Option<i32>> {
    match events.next().await.context("it ended without a word")?? {
        Event::Output { offset, data, .. } => {
            ensure!(offset == got.len() as u64, "{offset} after {}", got.len());
            got.extend_from_slice(&data);
        }
        Event::Exited(outcome) => {
            ensure!(outcome.exit_code == 5, "{outcome:?}");
            return Ok(Some(outcome.exit_code));
        }
        Event::Gap { .. } => bail!("a gap"),
        Event::Started { .. } => {}
    }
    Ok(None)
}

/// A call that waits for its result gets it over a kill of the daemon, and the command runs once.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_call_over_a_kill_of_the_daemon() -> Result<()> {
    let mut daemon = Daemon::new().await?;
    let near = client(&daemon.endpoint()).await?;
    let sandbox = near.sandbox("waits").await?;
    let room = daemon.api().room("waits").await?;
    let run =
        sandbox.run("echo once >> runs; until [ -e go ]; do sleep 0.05; done; cat runs; exit 4");
    let call = tokio::spawn(run.into_future());
    until("it runs", SOON, || async {
        let ran = room.run("cat runs 2>/dev/null").await?;
        Ok((ran.text() == "once\n").then_some(()))
    })
    .await?;
    daemon.kill9()?;
    daemon.start_again()?;
    room.run("touch go").await?.exited(0)?;
    let out = call.await??;
    ensure!(
        out.end_reason() == EndReason::Exited && out.exit_code() == 4,
        "{out:?}"
    );
    ensure!(out.stdout.text().as_str() == "once\n", "{out:?}");
    Ok(())
}

/// The commands of a person who leaves a run and comes back to it.
#[tokio::test(flavor = "multi_thread")]
async fn detach_runs_attach_and_logs() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room: Room = daemon.api().room("desk").await?;
    let script = "echo one; echo two; until [ -e go ]; do sleep 0.05; done; echo three; exit 9";
    let said = cli::lodge(&daemon, &["run", "-s", "desk", "--detach", script]).await?;
    let run = said.exited(0)?.text().trim().to_owned();
    until("it has written", SOON, || async {
        let log = room.whole_log(&run, pb::Stream::Stdout).await?;
        Ok((log == b"one\ntwo\n").then_some(()))
    })
    .await?;
    let live = cli::lodge(&daemon, &["runs", "-s", "desk", "--live", "--json"]).await?;
    ensure!(
        live.exited(0)?.json()?[0]["run_id"] == run,
        "{}",
        live.text()
    );
    let tail = cli::lodge(&daemon, &["logs", "-s", "desk", "--tail", "1", &run]).await?;
    ensure!(tail.exited(0)?.text() == "two\n");
    let mut from_now = cli::command(&daemon, &["attach", "-s", "desk", &run])?.spawn()?;
    let following = cli::command(&daemon, &["logs", "-s", "desk", "--follow", &run])?.spawn()?;
    // It is attached once the sandbox has open streams; what it shows then is what comes.
    until("both are attached", SOON, || async {
        Ok((room.get().await?.open_streams >= 2).then_some(()))
    })
    .await?;
    room.run("touch go").await?.exited(0)?;
    let mut shown = String::new();
    from_now
        .stdout
        .take()
        .context("piped")?
        .read_to_string(&mut shown)
        .await?;
    ensure!(shown == "three\n", "{shown:?}");
    ensure!(from_now.wait().await?.code() == Some(9));
    let followed = following.wait_with_output().await?;
    ensure!(followed.stdout == b"one\ntwo\nthree\n" && followed.status.success());
    let again = cli::lodge(&daemon, &["attach", "-s", "desk", "--from-start", &run]).await?;
    ensure!(again.exited(9)?.text() == "one\ntwo\nthree\n");
    let grep = [
        "logs", "-s", "desk", "--grep", "T(W|H)", "-i", "-B", "1", &run,
    ];
    ensure!(cli::lodge(&daemon, &grep).await?.exited(0)?.text() == "one\ntwo\nthree\n");
    let none = cli::lodge(&daemon, &["logs", "-s", "desk", "--grep", "four", &run]).await?;
    ensure!(none.exited(1)?.text().is_empty());
    Ok(())
}
