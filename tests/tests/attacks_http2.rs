//! Attacks A40 and A42: messages and floods of HTTP/2 that no client library would send, by frames that are written by hand. Whoever
//! floods is answered, cut, or no longer read; the daemon keeps its size and answers others meanwhile.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lodge_tests::api::Api;
use lodge_tests::arena::{Arena, HEALTH_WITHIN};
use lodge_tests::host;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// What the daemon may grow by.
const GROWTH: u64 = 32 << 20;
/// How long a flood lasts that nobody ends.
const FLOOD: Duration = Duration::from_millis(700);
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Kinds of frames (RFC 9113, section 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_HEADERS: u8 = 4;
/// The code of a reset by whoever called.
const CANCEL: [u8; 4] = [0, 0, 0, 8];

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a frame is short");
    let mut bytes = length.to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// The header block of a call (RFC 7541): indexed where the static table has it, else literal and not kept.
fn call(path: &str) -> Vec<u8> {
    // :method POST and :scheme http; then :path by its name's index.
    let mut block = vec![0x83, 0x86, 0x04];
    text(&mut block, path);
    // :authority
    block.push(0x01);
    text(&mut block, "localhost");
    for (name, value) in [("content-type", "application/grpc"), ("te", "trailers")] {
        block.push(0x00);
        text(&mut block, name);
        text(&mut block, value);
    }
    block
}

fn text(block: &mut Vec<u8>, text: &str) {
    block.push(
        u8::try_from(text.len())
            .expect("shorter than what one byte says")
            .min(126),
    );
    block.extend(text.as_bytes());
}

/// A call of the API that takes a message.
const ACQUIRE: &str = "/lodge.v1.SandboxService/Acquire";

async fn connect(arena: &Arena) -> Result<UnixStream> {
    let mut socket = UnixStream::connect(arena.daemon.slot().home().join("lodged.sock")).await?;
    socket.write_all(PREFACE).await?;
    socket.write_all(&frame(SETTINGS, 0, 0, &[])).await?;
    Ok(socket)
}

/// All that is answered until the connection ends, or `enough` is seen in it.
async fn answer(socket: &mut UnixStream, enough: &[u8]) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    let read = async {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let count = socket.read(&mut buffer).await.unwrap_or(0);
            all.extend(&buffer[..count]);
            if count == 0 || all.windows(enough.len()).any(|bytes| bytes == enough) {
                return;
            }
        }
    };
    timeout(PATIENCE, read).await.context("no answer")?;
    Ok(all)
}

/// Sends the beginning of a message, of which the prefix says `flag` and `length`, and gives the status that is answered.
async fn status_of(arena: &Arena, flag: u8, length: u32) -> Result<String> {
    let socket = UnixStream::connect(arena.daemon.slot().home().join("lodged.sock")).await?;
    let (mut calls, connection) = h2::client::handshake(socket).await?;
    let connection = tokio::spawn(connection);
    let mut request = http::Request::post(format!("http://localhost{ACQUIRE}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if flag == 1 {
        request = request.header("grpc-encoding", "gzip");
    }
    let (answer, mut body) = calls.send_request(request.body(())?, false)?;
    let mut message = vec![flag];
    message.extend(length.to_be_bytes());
    message.extend([0; 100]);
    // It may be refused, and the stream closed, for what its headers say.
    let _ = body.send_data(message.into(), false);
    let answer = timeout(PATIENCE, answer).await.context("no answer")??;
    connection.abort();
    let status = answer.headers().get("grpc-status");
    Ok(status
        .with_context(|| format!("{answer:?}"))?
        .to_str()?
        .to_owned())
}

/// Writes these bytes again and again until nobody takes them, and reads nothing.
async fn flood(socket: &mut UnixStream, mut next: impl FnMut(u32) -> Vec<u8>) {
    let write = async {
        for n in 0.. {
            if socket.write_all(&next(n)).await.is_err() {
                return;
            }
        }
    };
    // Whether it is cut or no longer read: both are an end of it.
    let _ = timeout(FLOOD, write).await;
}

async fn health_is_fine(api: &Api) -> Result<()> {
    let mut slowest = Duration::ZERO;
    for _ in 0..3 {
        let took = api.health().await?;
        if took < HEALTH_WITHIN {
            return Ok(());
        }
        slowest = slowest.max(took);
    }
    anyhow::bail!("health took {slowest:?} three times")
}

/// A message that says it has 4 GiB, one of a byte more than the most, and one that is compressed: refused before it is there.
#[tokio::test(flavor = "multi_thread")]
async fn attack_a40_messages_beyond_the_bound() -> Result<()> {
    let arena = Arena::new().await?;
    let pid = arena.daemon.pid()?;
    let before = host::memory_field(pid, "VmRSS")?;
    for (what, flag, length, status) in [
        ("4 GiB", 0, u32::MAX, "11"),
        ("16 MiB and a byte", 0, (16 << 20) + 1, "11"),
        ("a compressed one", 1, 100, "12"),
    ] {
        let told = status_of(&arena, flag, length).await.context(what)?;
        ensure!(told == status, "{what}: status {told:?}");
    }
    let after = host::memory_field(pid, "VmRSS")?;
    ensure!(
        after < before + GROWTH,
        "{before} bytes before, {after} after"
    );
    arena.check().await
}

/// Frames that cost the sender next to nothing: what it is, how it begins, and what comes then, by number.
type Flood = (&'static str, Vec<u8>, fn(u32) -> Vec<u8>);

fn open(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &call(ACQUIRE))
}

fn floods() -> Vec<Flood> {
    let rapid_reset = |n: u32| {
        let stream = n.saturating_mul(2) | 1;
        [open(stream), frame(RST_STREAM, 0, stream, &CANCEL)].concat()
    };
    // A window update of zero has the server reset the stream.
    let made_to_reset = |n: u32| {
        let stream = n.saturating_mul(2) | 1;
        [open(stream), frame(WINDOW_UPDATE, 0, stream, &[0; 4])].concat()
    };
    let continuation = |_| {
        let mut field = vec![0x00];
        text(&mut field, "x-more");
        text(&mut field, &"y".repeat(120));
        frame(CONTINUATION, 0, 1, &field.repeat(100))
    };
    vec![
        ("rapid reset", Vec::new(), rapid_reset),
        ("made you reset", Vec::new(), made_to_reset),
        ("ping", Vec::new(), |_| {
            frame(PING, 0, 0, b"attacker").repeat(64)
        }),
        ("settings", Vec::new(), |_| {
            frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 255, 255]).repeat(64)
        }),
        ("empty data", open(1), |_| frame(DATA, 0, 1, &[]).repeat(64)),
        (
            "continuation",
            frame(HEADERS, 0, 1, &call(ACQUIRE)),
            continuation,
        ),
        ("window updates", open(1), |_| {
            frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1]).repeat(64)
        }),
    ]
}

/// Whoever floods is cut or no longer read, and others do not notice.
#[tokio::test(flavor = "multi_thread")]
async fn attack_a42_floods_of_frames() -> Result<()> {
    let arena = Arena::new().await?;
    let pid = arena.daemon.pid()?;
    let before = host::memory_field(pid, "VmRSS")?;
    for (what, begin, next) in floods() {
        let mut socket = connect(&arena).await?;
        socket.write_all(&begin).await?;
        let flooding = tokio::spawn(async move {
            flood(&mut socket, next).await;
            socket
        });
        while !flooding.is_finished() {
            health_is_fine(arena.daemon.api()).await.context(what)?;
        }
        let after = host::memory_field(pid, "VmRSS")?;
        drop(flooding.await?);
        ensure!(
            after < before + GROWTH,
            "{what}: {before} bytes before, {after} after"
        );
    }
    arena.check().await
}

/// Streams are reset faster than anybody means it: the connection is ended with a word.
#[tokio::test(flavor = "multi_thread")]
async fn attack_a42_rapid_reset_is_cut() -> Result<()> {
    let arena = Arena::new().await?;
    let mut socket = connect(&arena).await?;
    let block = call(ACQUIRE);
    let burst: Vec<u8> = (0..2000u32)
        .flat_map(|n| {
            let stream = 2 * n + 1;
            let reset = frame(RST_STREAM, 0, stream, &CANCEL);
            [frame(HEADERS, END_HEADERS, stream, &block), reset].concat()
        })
        .collect();
    // It may be cut in the middle of it.
    let _ = timeout(PATIENCE, socket.write_all(&burst)).await;
    let goaway = frame(GOAWAY, 0, 0, &[0; 8]);
    // Length aside: the kind, no flags, no stream.
    let answered = answer(&mut socket, &goaway[3..9]).await?;
    ensure!(
        answered.windows(6).any(|bytes| *bytes == goaway[3..9]),
        "no GOAWAY in {} bytes",
        answered.len()
    );
    arena.check().await
}
