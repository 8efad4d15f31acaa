//! Attacks A15, A44 and L13: bytes that are no messages, and what errors tell of the host.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::uri::PathAndQuery;
use lodge_proto::v1 as pb;
use lodge_tests::api::{by_id, by_name};
use lodge_tests::arena::Arena;
use proptest::prelude::Rng as _;
use proptest::test_runner::{RngAlgorithm, TestRng};
use prost::bytes::{Buf as _, BufMut as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Request, Status};

/// A stream that tells of changes as they come is given up after this.
const PATIENCE: Duration = Duration::from_millis(500);

/// Every method of the API, from the files that define it.
const PROTOS: [&str; 4] = ["exec", "image", "node", "sandbox"];

/// `/package.Service/Method` of each.
fn methods() -> Result<Vec<String>> {
    let mut methods = Vec::new();
    for name in PROTOS {
        let path = format!(
            "{}/../proto/lodge/v1/{name}.proto",
            env!("CARGO_MANIFEST_DIR")
        );
        let text = std::fs::read_to_string(&path).context(path)?;
        let mut service = "";
        for line in text.lines().map(str::trim_start) {
            if let Some(rest) = line.strip_prefix("service ") {
                service = rest.split(' ').next().context("a service")?;
            } else if let Some(rest) = line.strip_prefix("rpc ") {
                let method = rest.split('(').next().context("a method")?;
                methods.push(format!("/lodge.v1.{service}/{method}"));
            }
        }
    }
    Ok(methods)
}

/// Random bytes as a message of every call, and messages with fields, enums and kinds that nobody knows: an answer or an error that says
/// that it is the caller's; the daemon has no panic and goes on.
#[tokio::test(flavor = "multi_thread")]
async fn attack_a15_random_messages_to_every_call() -> Result<()> {
    let arena = Arena::new().await?;
    let methods = methods()?;
    ensure!(methods.len() > 20, "{methods:?}");
    let mut random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    for method in &methods {
        for size in [0, 1, 7, 64, 700] {
            let mut bytes = vec![0; size];
            random.fill_bytes(&mut bytes);
            let called = timeout(PATIENCE, call(&arena, method, bytes.clone())).await;
            let Ok(Err(status)) = called else { continue };
            ensure!(
                !matches!(status.code(), Code::Unknown | Code::DataLoss)
                    && !status.message().contains("panic"),
                "{method} {bytes:?}: {status:?}"
            );
        }
    }
    let log = std::fs::read_to_string(arena.daemon.log_file())?;
    ensure!(!log.contains("panicked"), "{log}");
    arena.check().await
}

/// Sends these bytes as the one message of a call, and reads what comes back.
async fn call(arena: &Arena, method: &str, bytes: Vec<u8>) -> Result<usize, Status> {
    let mut client = Grpc::new(arena.daemon.api().channel());
    let ready = client.ready().await;
    ready.map_err(|error| Status::unknown(error.to_string()))?;
    let path = PathAndQuery::try_from(method).map_err(|e| Status::unknown(e.to_string()))?;
    let request = Request::new(tokio_stream::once(bytes));
    let mut answers = client.streaming(request, path, Raw).await?.into_inner();
    let mut count = 0;
    while answers.message().await?.is_some() {
        count += 1;
    }
    Ok(count)
}

/// Messages as their bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = ();
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = ();
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
        message.advance(message.remaining());
        Ok(Some(()))
    }
}

/// Browsers, TLS clients and garbage at the socket: no answer but that of a server that speaks HTTP/2, and nothing is done.
#[tokio::test(flavor = "multi_thread")]
async fn attack_a44_what_is_no_grpc() -> Result<()> {
    const ANSWER_WITHIN: Duration = Duration::from_secs(10);
    let arena = Arena::new().await?;
    let acquire = "POST /lodge.v1.SandboxService/Acquire HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\n\
        Content-Type: application/grpc\r\nContent-Length: 8\r\n\r\n\0\0\0\0\x03\x0a\x01z";
    let upgrade = "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: \r\n\r\n";
    let hello = b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03".as_slice();
    let noise = [0xff; 4096].as_slice();
    for bytes in [
        acquire.as_bytes(),
        upgrade.as_bytes(),
        b"GET /\r\n\r\n",
        hello,
        noise,
    ] {
        let mut socket = UnixStream::connect(arena.daemon.socket()).await?;
        // It may be closed before all is written.
        let _ = socket.write_all(bytes).await;
        let _ = socket.shutdown().await;
        let mut answer = Vec::new();
        let read = timeout(ANSWER_WITHIN, socket.read_to_end(&mut answer)).await;
        ensure!(read.is_ok(), "it keeps {bytes:?} waiting");
        // Frames of HTTP/2 begin with a length of three bytes, small here.
        ensure!(
            !answer.starts_with(b"HTTP/1.1 2") && (answer.is_empty() || answer[0] == 0),
            "{:?}",
            String::from_utf8_lossy(&answer)
        );
    }
    let mut sandboxes = arena.daemon.api().sandboxes();
    let get = pb::GetSandboxRequest {
        sandbox: by_name("z"),
    };
    let found = sandboxes.get(get).await;
    ensure!(found.is_err_and(|status| status.code() == Code::NotFound));
    arena.check().await
}

/// Errors of every kind tell of what the caller named, and nothing of the host: no path of the daemon's, no other sandbox, no line of
/// its source.
#[tokio::test(flavor = "multi_thread")]
async fn attack_l13_errors_tell_nothing_of_the_host() -> Result<()> {
    let arena = Arena::new().await?;
    let (room, told) = (&arena.attacker, refusals(&arena).await?);
    let mut texts: Vec<String> = told.iter().map(|status| format!("{status:?}")).collect();
    ensure!(texts.len() >= 25, "only {} errors", texts.len());
    for run in [
        room.argv(&["/no/such/program"]),
        room.run("true").cwd("/no/such/directory"),
        room.run("true").user("nobody-knows"),
        room.argv(&["/etc/passwd"]),
        room.argv(&["/"]),
    ] {
        texts.push(run.await?.result.message);
    }
    let slot = arena.daemon.slot();
    let (home, state) = (
        slot.home().display().to_string(),
        slot.state().display().to_string(),
    );
    for text in &texts {
        for secret in [
            home.as_str(),
            &state,
            arena.neighbour.id(),
            ".rs:",
            "panicked",
            "/proc/self/fd",
        ] {
            ensure!(!text.contains(secret), "{secret} is in {text}");
        }
    }
    arena.check().await
}

/// Refusals of calls of every kind.
async fn refusals(arena: &Arena) -> Result<Vec<Status>> {
    let (api, room) = (arena.daemon.api(), &arena.attacker);
    let mut told = Vec::new();
    for name in ["nobody", "", "../x", "a/b", "UPPER"] {
        let get = pb::GetSandboxRequest {
            sandbox: by_name(name),
        };
        told.extend(api.sandboxes().get(get).await.err());
        let acquire = pb::AcquireRequest {
            name: name.into(),
            image: "no-such-image".into(),
            ..Default::default()
        };
        told.extend(api.try_acquire(acquire).await.err());
        told.extend(api.remove_image(name).await.err());
        told.extend(room.get_run(name).await.err());
        told.extend(
            room.run("true")
                .with(|s| s.sandbox = by_id(name))
                .send()
                .await
                .err(),
        );
    }
    for bytes in [1, -1, i64::MAX] {
        for limits in [
            pb::Limits {
                memory_bytes: Some(bytes),
                ..Default::default()
            },
            pb::Limits {
                disk_bytes: Some(bytes),
                ..Default::default()
            },
        ] {
            let acquire = pb::AcquireRequest {
                name: "limits".into(),
                limits: Some(limits),
                ..Default::default()
            };
            told.extend(api.try_acquire(acquire).await.err());
        }
    }
    told.extend(api.import("bad", &[1; 4096]).await.err());
    told.extend(room.run("true").env("A=B", "x").send().await.err());
    Ok(told)
}
