//! Attaching to a run by the raw API.

use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lodge_proto::v1::{self as pb, run_event};
use tokio::time::timeout;
use tonic::{Status, Streaming};

use crate::api::{Api, by_id};
use crate::room::Room;

/// Longest wait for an event that a test expects.
const EVENT_WITHIN: Duration = Duration::from_secs(60);

/// What an attached stream has told so far.
#[derive(Debug)]
pub struct Attached {
    /// Standard output, in pieces: each with its offset.
    pub stdout: Vec<(u64, Vec<u8>)>,
    /// Gaps of standard output.
    pub gaps: Vec<Range<u64>>,
    /// Offset of the next byte of standard output.
    pub at: u64,
    events: Streaming<pb::RunEvent>,
}

impl Attached {
    /// Attaches from these offsets of standard output and standard error on; the refusal as the daemon gave it.
    pub async fn new(room: &Room, run_id: &str, offsets: [u64; 2]) -> Result<Self, Status> {
        Self::on(room.api(), room, run_id, offsets).await
    }

    /// The same on another connection.
    pub async fn on(
        api: &Api,
        room: &Room,
        run_id: &str,
        [stdout_offset, stderr_offset]: [u64; 2],
    ) -> Result<Self, Status> {
        let request = pb::AttachRequest {
            sandbox: by_id(room.id()),
            run_id: run_id.into(),
            stdout_offset,
            stderr_offset,
        };
        let mut events = api.exec().attach(request).await?.into_inner();
        match events.message().await?.and_then(|event| event.event) {
            Some(run_event::Event::Started(started)) if started.attached => {}
            other => return Err(Status::data_loss(format!("it begins with {other:?}"))),
        }
        Ok(Self {
            stdout: Vec::new(),
            gaps: Vec::new(),
            at: stdout_offset,
            events,
        })
    }

    /// All of standard output that came.
    pub fn text(&self) -> Vec<u8> {
        let pieces = self.stdout.iter().flat_map(|(_, piece)| piece);
        pieces.copied().collect()
    }

    /// Takes one event; the result if it was the last. Fails where output does not go on where it was.
    pub async fn next(&mut self) -> Result<Option<pb::RunResult>> {
        let event = timeout(EVENT_WITHIN, self.events.message())
            .await
            .context("no event came")??;
        match event.and_then(|event| event.event) {
            Some(run_event::Event::Output(chunk)) if chunk.stream() == pb::Stream::Stdout => {
                ensure!(
                    chunk.offset == self.at,
                    "{} after {}",
                    chunk.offset,
                    self.at
                );
                self.at += chunk.data.len() as u64;
                self.stdout.push((chunk.offset, chunk.data.to_vec()));
            }
            Some(run_event::Event::Gap(gap)) if gap.stream() == pb::Stream::Stdout => {
                ensure!(
                    gap.from == self.at && gap.to > gap.from,
                    "{gap:?} at {}",
                    self.at
                );
                self.at = gap.to;
                self.gaps.push(gap.from..gap.to);
            }
            Some(run_event::Event::Output(_) | run_event::Event::Gap(_)) => {}
            Some(run_event::Event::Exited(result)) => return Ok(Some(result)),
            other => bail!("unexpected event {other:?}"),
        }
        Ok(None)
    }

    /// Reads until standard output has come to `offset`.
    pub async fn reach(&mut self, offset: u64) -> Result<()> {
        while self.at < offset {
            ensure!(self.next().await?.is_none(), "ended at {}", self.at);
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
}
