//! A streaming run: what has come so far, and waiting for what is to come.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lodge_proto::v1::{self as pb, run_event, start_request};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::api::Api;

/// Longest wait for an event that a test expects.
const EVENT_WITHIN: Duration = Duration::from_secs(60);
/// Requests on their way to the daemon.
const QUEUED: usize = 4;

/// A streaming run.
#[derive(Debug)]
pub struct Live {
    /// The run's id.
    pub run_id: String,
    /// The run is that of an earlier call.
    pub attached: bool,
    /// Standard output so far.
    pub stdout: Vec<u8>,
    /// Standard error so far.
    pub stderr: Vec<u8>,
    /// The order in which pieces came: stream and length.
    pub order: Vec<(pb::Stream, usize)>,
    /// The daemon said that the command has all of its input.
    pub stdin_taken: bool,
    requests: mpsc::Sender<pb::StartRequest>,
    events: Streaming<pb::RunEvent>,
}

impl Live {
    /// Starts it and waits until it has an id.
    pub async fn start(api: &Api, spec: pb::StartSpec) -> Result<Self> {
        Self::try_start(api, spec)
            .await?
            .context("the run was refused")
    }

    /// As [`Live::start`], with the daemon's refusal kept apart.
    pub async fn try_start(api: &Api, spec: pb::StartSpec) -> Result<Result<Self, Status>> {
        let (requests, receiver) = mpsc::channel(QUEUED);
        let first = pb::StartRequest {
            message: Some(start_request::Message::Spec(spec)),
        };
        requests.send(first).await?;
        let mut events = match api.exec().start(ReceiverStream::new(receiver)).await {
            Ok(reply) => reply.into_inner(),
            Err(status) => return Ok(Err(status)),
        };
        let event = match timeout(EVENT_WITHIN, events.message()).await? {
            Ok(event) => event.and_then(|e| e.event),
            Err(status) => return Ok(Err(status)),
        };
        let Some(run_event::Event::Started(started)) = event else {
            bail!("the first event is not `started`: {event:?}");
        };
        let (run_id, attached) = (started.run_id, started.attached);
        let (stdout, stderr, order) = Default::default();
        Ok(Ok(Self {
            run_id,
            attached,
            stdout,
            stderr,
            order,
            stdin_taken: false,
            requests,
            events,
        }))
    }

    /// Writes to standard input.
    pub async fn write(&self, bytes: &[u8]) -> Result<()> {
        let message = start_request::Message::Stdin(bytes.to_vec().into());
        Ok(self
            .requests
            .send(pb::StartRequest {
                message: Some(message),
            })
            .await?)
    }

    /// Ends standard input.
    pub async fn close_stdin(&self) -> Result<()> {
        let message = start_request::Message::StdinEof(pb::StdinEof {});
        Ok(self
            .requests
            .send(pb::StartRequest {
                message: Some(message),
            })
            .await?)
    }

    /// Waits until standard output contains `text`.
    pub async fn wait_for(&mut self, text: &str) -> Result<()> {
        while !contains(&self.stdout, text.as_bytes()) {
            if let Some(result) = self.next().await? {
                bail!(
                    "ended as {:?} before it wrote {text:?}; stdout: {}; stderr: {}",
                    result.end_reason(),
                    String::from_utf8_lossy(&self.stdout),
                    String::from_utf8_lossy(&self.stderr)
                );
            }
        }
        Ok(())
    }

    /// Reads until the run has ended.
    pub async fn end(&mut self) -> Result<pb::RunResult> {
        loop {
            if let Some(result) = self.next().await? {
                return Ok(result);
            }
        }
    }

    /// Takes one event; the result if it was the last one. A stream that ends without it is an error.
    async fn next(&mut self) -> Result<Option<pb::RunResult>> {
        let event = timeout(EVENT_WITHIN, self.events.message())
            .await
            .context("no event came")??;
        match event
            .context("the stream ended without the run's end")?
            .event
        {
            Some(run_event::Event::Output(chunk)) => self.take(&chunk)?,
            Some(run_event::Event::StdinTaken(_)) => self.stdin_taken = true,
            Some(run_event::Event::Exited(result)) => return Ok(Some(result)),
            other => bail!("unexpected event {other:?}"),
        }
        Ok(None)
    }

    fn take(&mut self, chunk: &pb::OutputChunk) -> Result<()> {
        let stream = chunk.stream();
        let so_far = match stream {
            pb::Stream::Stdout => &mut self.stdout,
            pb::Stream::Stderr => &mut self.stderr,
            pb::Stream::Unspecified => bail!("a piece of no stream"),
        };
        ensure!(
            chunk.data.len() <= 64 << 10,
            "a piece of {} bytes",
            chunk.data.len()
        );
        ensure!(
            chunk.offset == so_far.len() as u64,
            "a piece at {} after {}",
            chunk.offset,
            so_far.len()
        );
        so_far.extend_from_slice(&chunk.data);
        self.order.push((stream, chunk.data.len()));
        Ok(())
    }
}

/// Whether `needle` is in `haystack`.
pub fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|w| w == needle)
}
