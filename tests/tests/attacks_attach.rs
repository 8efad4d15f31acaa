//! Attacks A13, A16 and A18: callers who vanish in every way, input that breaks the rules or never ends, and offsets
//! that no log has. The run is told honestly or goes on; nothing leaks, and nobody else is held up.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lodge_proto::v1::{self as pb, start_request::Message};
use lodge_tests::api::{Api, refused};
use lodge_tests::attached::Attached;
use lodge_tests::daemon::Daemon;
use lodge_tests::host;
use lodge_tests::live::Live;
use lodge_tests::proxy::Proxy;
use lodge_tests::room::{Command, Room};
use lodge_tests::wait::{SOON, until};
use tokio::time::timeout;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// Frames without a byte; the catalogue asks for a million, which an unoptimised daemon takes too long for.
const EMPTY_FRAMES: usize = 100_000;

fn start_with(command: &Command, open_stdin: bool) -> pb::StartRequest {
    let spec = pb::StartSpec {
        run: Some(command.spec().clone()),
        open_stdin,
    };
    request(Message::Spec(spec))
}

fn request(message: Message) -> pb::StartRequest {
    pb::StartRequest {
        message: Some(message),
    }
}

fn stdin(bytes: &'static [u8]) -> pb::StartRequest {
    request(Message::Stdin(bytes.into()))
}

fn eof() -> pb::StartRequest {
    request(Message::StdinEof(pb::StdinEof {}))
}

/// What a stream of requests leads to: standard output, and the end, or the refusal.
async fn talk(api: &Api, requests: Vec<pb::StartRequest>) -> Result<(Vec<u8>, i32), Status> {
    let mut events = api
        .exec()
        .start(tokio_stream::iter(requests))
        .await?
        .into_inner();
    let mut out = Vec::new();
    while let Some(event) = events.message().await? {
        match event.event {
            Some(pb::run_event::Event::Output(chunk)) => out.extend_from_slice(&chunk.data),
            Some(pb::run_event::Event::Exited(result)) => return Ok((out, result.exit_code)),
            _ => {}
        }
    }
    Err(Status::data_loss("the stream ended without the run's end"))
}

async fn live_runs(room: &Room) -> Result<u32> {
    Ok(room.get().await?.live_runs)
}

/// How a caller goes.
#[derive(Debug, Clone, Copy)]
enum Leave {
    /// The stream is reset, the connection stays.
    Reset,
    /// The connection is cut.
    Cut,
}

/// A caller who goes in the middle leaves the run going, or ends it if they asked for that; either way nothing of the
/// stream stays with the daemon.
#[tokio::test(flavor = "multi_thread")]
async fn attack_a13_callers_who_vanish() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("a13").await?;
    for leave in [Leave::Reset, Leave::Cut] {
        for cancel in [false, true] {
            let proxy = Proxy::new(&daemon.socket(), None)?;
            let far = Api::new(proxy.socket())?;
            let command = room.run("echo begun; sleep 300").on(&far);
            let command = command.with(|spec| spec.cancel_on_disconnect = cancel);
            let mut live = command.start_with_stdin().await?;
            live.wait_for("begun\n").await?;
            let run_id = live.run_id.clone();
            match leave {
                Leave::Reset => drop(live),
                Leave::Cut => proxy.cut(),
            }
            until("the stream is gone", SOON, || async {
                Ok((room.get().await?.open_streams == 0).then_some(()))
            })
            .await?;
            if cancel {
                let mut attached = Attached::new(&room, &run_id, [0, 0]).await?;
                let reason = attached.end().await?.end_reason();
                ensure!(reason == pb::EndReason::Cancelled, "{leave:?}: {reason:?}");
            } else {
                ensure!(live_runs(&room).await? == 1, "{leave:?} ended the run");
                ensure!(room.kill(&run_id).await? > 0);
            }
            ensure!(live_runs(&room).await? == 0 && room.processes().await?.is_empty());
        }
    }
    Ok(())
}

/// A caller who only ends their requests still gets everything. One who leaves an `Attach` never ends the run, also if
/// its first caller had asked for that; and a thousand attaches that are dropped leave no descriptor behind.
#[tokio::test(flavor = "multi_thread")]
async fn attack_a13_half_closed_and_dropped_attaches() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("a13").await?;
    let command = room.run("cat; echo after").timeout(SOON);
    let (out, code) = talk(room.api(), vec![start_with(&command, true), stdin(b"in\n")]).await?;
    ensure!(out == b"in\nafter\n" && code == 0);

    let command = room
        .run("echo begun; cat")
        .with(|spec| spec.cancel_on_disconnect = true);
    let mut live = command.start_with_stdin().await?;
    live.wait_for("begun\n").await?;
    let before = host::open_files(daemon.pid()?)?;
    for _ in 0..1000 {
        drop(Attached::new(&room, &live.run_id, [0, 0]).await?);
    }
    until("the attaches are gone", SOON, || async {
        Ok((room.get().await?.open_streams == 1).then_some(()))
    })
    .await?;
    let after = host::open_files(daemon.pid()?)?;
    ensure!(after <= before + 2, "{before} descriptors, then {after}");
    live.close_stdin().await?;
    ensure!(live.end().await?.exit_code == 0, "an attach ended the run");
    Ok(())
}

/// Frames before the start, after the end, without `open_stdin`, and unknown ones are refused as what they are.
#[tokio::test(flavor = "multi_thread")]
async fn attack_a16_input_out_of_place() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("a16").await?;
    let api = room.api();
    let cat = room.run("cat").timeout(SOON);
    let start = |open| start_with(&cat, open);
    for (what, requests) in [
        ("nothing", vec![]),
        ("input first", vec![stdin(b"x"), start(true)]),
        ("an end first", vec![eof(), start(true)]),
        ("input after its end", vec![start(true), eof(), stdin(b"x")]),
        ("two starts", vec![start(true), start(true)]),
        (
            "input without open_stdin",
            vec![start_with(&room.run("sleep 5"), false), stdin(b"x")],
        ),
        (
            "an empty message",
            vec![start(true), pb::StartRequest { message: None }],
        ),
    ] {
        refused(talk(api, requests).await, Code::InvalidArgument, what)?;
    }
    until(
        "none of them runs on for want of its caller",
        SOON,
        || async { Ok((live_runs(&room).await? == 0).then_some(())) },
    )
    .await?;
    Ok(())
}

/// A flood of frames without a byte is taken and costs no memory; the input that follows them comes through.
#[tokio::test(flavor = "multi_thread")]
async fn attack_a16_empty_frames() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("a16").await?;
    host::reset_peak_memory(daemon.pid()?)?;
    let before = host::memory_field(daemon.pid()?, "VmHWM")?;
    let first = start_with(&room.run("cat"), true);
    let empty = std::iter::repeat_with(|| stdin(b"")).take(EMPTY_FRAMES);
    let requests = std::iter::once(first)
        .chain(empty)
        .chain([stdin(b"at last\n"), eof()]);
    let (out, code) = talk(room.api(), requests.collect()).await?;
    ensure!(out == b"at last\n" && code == 0);
    let peak = host::memory_field(daemon.pid()?, "VmHWM")?;
    ensure!(peak < before + (16 << 20), "from {before} to {peak} bytes");
    Ok(())
}

/// Input that comes faster than the command reads waits with the caller: the daemon takes no more than its windows hold,
/// and none of it is lost. Input that never ends keeps nobody else, and its run ends by its deadline.
#[tokio::test(flavor = "multi_thread")]
async fn attack_a16_input_faster_than_it_is_read() -> Result<()> {
    const PIECE: &[u8] = &[b'x'; 64 << 10];
    const PIECES: usize = 1600;
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("a16").await?;
    host::reset_peak_memory(daemon.pid()?)?;
    let before = host::memory_field(daemon.pid()?, "VmHWM")?;
    let command = room.run("echo begun; until [ -e go ]; do sleep 0.05; done; wc -c");
    let mut live = command.start_with_stdin().await?;
    live.wait_for("begun\n").await?;
    let mut sent = 0;
    // Held up: for as long as this nothing more was taken.
    while timeout(Duration::from_secs(2), live.write(PIECE))
        .await
        .is_ok()
    {
        sent += 1;
        ensure!(
            sent < PIECES / 2,
            "the daemon took {sent} pieces that nobody reads"
        );
    }
    let peak = host::memory_field(daemon.pid()?, "VmHWM")?;
    ensure!(peak < before + (16 << 20), "from {before} to {peak} bytes");
    room.run("touch go").await?.exited(0)?;
    for _ in sent..PIECES {
        live.write(PIECE).await?;
    }
    live.close_stdin().await?;
    ensure!(live.end().await?.exit_code == 0);
    let counted = String::from_utf8(live.stdout)?;
    let wanted = format!("begun\n{}\n", PIECE.len() * PIECES);
    ensure!(counted == wanted, "{counted:?} instead of {wanted:?}");

    let endless = room.run("cat >/dev/null").timeout(Duration::from_secs(2));
    let mut live: Live = endless.start_with_stdin().await?;
    ensure!(live.end().await?.end_reason() == pb::EndReason::TimedOut);
    Ok(())
}

/// The figures of a refused offset.
fn figures(status: &Status) -> Result<(String, u64, u64)> {
    let info = status.get_details_error_info().context("no error info")?;
    let figure = |key: &str| -> Result<u64> {
        Ok(info
            .metadata
            .get(key)
            .with_context(|| format!("no {key}"))?
            .parse()?)
    };
    Ok((
        info.reason.clone(),
        figure("earliest_offset")?,
        figure("end_offset")?,
    ))
}

/// Offsets that no byte ever had are OUT_OF_RANGE with the offsets that there are, for a live run and for an ended one;
/// the end itself is not. A negative one is a huge one on the wire. Old ones get a gap (case E8).
#[tokio::test(flavor = "multi_thread")]
async fn attack_a18_offsets_that_no_log_has() -> Result<()> {
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("a18").await?;
    let mut live = room.run("echo begun; sleep 300").start().await?;
    live.wait_for("begun\n").await?;
    let ended = room.run("echo ended; echo >&2").await?.result.run_id;
    let negative = (-1_i64).cast_unsigned();
    for run in [&live.run_id, &ended] {
        for offset in [7, 1 << 40, negative, u64::MAX] {
            for offsets in [[offset, 0], [0, offset]] {
                let refused = Attached::new(&room, run, offsets).await;
                let status = refused
                    .err()
                    .context("an offset beyond the end was taken")?;
                ensure!(status.code() == Code::OutOfRange, "{status}");
                let end = match offsets {
                    [0, _] if run == &ended => 1,
                    [0, _] => 0,
                    _ => 6,
                };
                ensure!(figures(&status)? == ("OFFSET_BEYOND_END".into(), 0, end));
                ensure!(status.message().contains(&offset.to_string()), "{status}");
            }
            let read = room.read_log(run, pb::Stream::Stdout, offset, 0).await;
            ensure!(format!("{:#}", read.expect_err("beyond")).contains("beyond the end"));
            let searched = room.search(run, |s| s.offset = offset).await;
            refused(searched, Code::OutOfRange, "a search beyond the end")?;
        }
    }
    let mut attached = Attached::new(&room, &ended, [6, 1]).await?;
    ensure!(attached.end().await?.stdout_bytes == 6 && attached.stdout.is_empty());
    let unknown = Attached::new(&room, "00000000000000000000", [0, 0]).await;
    ensure!(unknown.err().context("unknown")?.code() == Code::NotFound);
    ensure!(live_runs(&room).await? == 1, "an attach ended the run");
    ensure!(room.kill(&live.run_id).await? > 0);
    Ok(())
}

/// Many attach at once, one of them takes nothing: each of the others gets every byte, the command is held up for half a
/// minute at most, the daemon's memory stays flat, and the one who stood still is told the gap in the end.
#[tokio::test(flavor = "multi_thread")]
async fn attachers_one_of_whom_stands_still() -> Result<()> {
    const TOTAL: u64 = 60_000_000;
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("many").await?;
    let program = "import os\nos.read(0, 1)\nb = b'0123456789abcde\\n' * 3750\n\
        for i in range(1000): os.write(1, b)";
    let live = room.python(program).start_with_stdin().await?;
    let stalled_api = Api::new(&daemon.socket())?;
    let mut stalled = Attached::on(&stalled_api, &room, &live.run_id, [0, 0]).await?;
    let mut others = Vec::new();
    for _ in 0..8 {
        others.push(Attached::new(&room, &live.run_id, [0, 0]).await?);
    }
    host::reset_peak_memory(daemon.pid()?)?;
    let before = host::memory_field(daemon.pid()?, "VmHWM")?;
    live.write(b"x").await?;
    let begun = std::time::Instant::now();
    let run_id = live.run_id.clone();
    // Its own caller goes: an attach is what holds the command up now.
    drop(live);
    let mut taking = tokio::task::JoinSet::new();
    for mut other in others {
        taking.spawn(async move {
            let result = other.end().await?;
            let lost: u64 = other.gaps.iter().map(|gap| gap.end - gap.start).sum();
            Ok::<_, anyhow::Error>((result.stdout_bytes, other.at, lost))
        });
    }
    while let Some(taken) = taking.join_next().await {
        ensure!(taken?? == (TOTAL, TOTAL, 0));
    }
    ensure!(
        begun.elapsed() < Duration::from_secs(90),
        "held up for {:?}",
        begun.elapsed()
    );
    let peak = host::memory_field(daemon.pid()?, "VmHWM")?;
    ensure!(peak < before + (32 << 20), "from {before} to {peak} bytes");
    let result = stalled.end().await?;
    ensure!(result.run_id == run_id && stalled.at == TOTAL && stalled.gaps.len() == 1);
    for (offset, piece) in &stalled.stdout {
        let want = b"0123456789abcde\n"
            .iter()
            .cycle()
            .skip((offset % 16) as usize);
        ensure!(want.take(piece.len()).eq(piece), "other bytes at {offset}");
    }
    Ok(())
}

/// More streams than the daemon has places for are refused at once, and no run is started for one; the places come back.
#[tokio::test(flavor = "multi_thread")]
async fn streams_beyond_the_bound_are_refused_at_once() -> Result<()> {
    const PLACES: usize = 2048;
    let daemon = Daemon::new().await?;
    let room = daemon.api().room("places").await?;
    let mut live = room.run("echo begun; sleep 300").start().await?;
    live.wait_for("begun\n").await?;
    let mut open = Vec::new();
    // A connection may have 512 calls.
    for _ in 0..PLACES / 256 {
        let api = Api::new(&daemon.socket())?;
        for _ in 0..256.min(PLACES - 1 - open.len()) {
            open.push(Attached::on(&api, &room, &live.run_id, [0, 0]).await?);
        }
    }
    let one_more = Attached::new(&room, &live.run_id, [0, 0]).await;
    let status = one_more.err().context("one more was taken")?;
    ensure!(status.code() == Code::ResourceExhausted, "{status}");
    let start = Live::try_start(
        room.api(),
        pb::StartSpec {
            run: Some(room.run("touch started").spec().clone()),
            open_stdin: false,
        },
    );
    ensure!(start.await?.err().context("one more")?.code() == Code::ResourceExhausted);
    ensure!(
        room.run("ls started 2>/dev/null").await?.text().is_empty(),
        "it ran"
    );
    drop(open);
    until("there are places again", SOON, || async {
        Ok(Attached::new(&room, &live.run_id, [0, 0])
            .await
            .ok()
            .map(drop))
    })
    .await?;

    Ok(())
}
