//! A run as it happens: its events, in order, until it has ended.
//!
//! The stream goes on by itself where the connection breaks: it attaches to its run from the bytes that it has, so that
//! nothing is lost and nothing comes twice. Where it cannot go on it ends with an error, never as if the run had ended.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use lodge_proto::v1 as pb;
use pb::run_event::Event as Wire;
use tokio::time::{Instant, Sleep};
use tonic::Streaming;

use crate::attach::Origin;
use crate::collect::Collected;
use crate::error::{Error, Result};
use crate::outcome::{Outcome, Output};
use crate::reconnect::{Tries, is_break};
use crate::upload::UploadFailure;
use crate::wire::present;

/// Standard output or standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StdStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Something that happened to a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It has an id. The first event.
    Started {
        /// The run's id.
        run_id: String,
    },
    /// It wrote something.
    Output {
        /// To which stream.
        stream: StdStream,
        /// Bytes of this stream before `data`.
        offset: u64,
        /// The bytes, as written.
        data: Bytes,
    },
    /// Output that this stream will not get, for it is no longer in the log.
    Gap {
        /// Which stream.
        stream: StdStream,
        /// Offset of the first missing byte.
        from: u64,
        /// Offset of the first byte after the gap.
        to: u64,
    },
    /// It has ended. The last event.
    Exited(Outcome),
}

/// The events of a run. The last one is [`Event::Exited`] or an error.
///
/// A connection that breaks is made again by itself, for up to 30 s
/// ([`reconnect_within`](crate::Client::reconnect_within)), and the stream goes on from the bytes that it has. Standard
/// input does not go on: if the connection breaks before the command has all of it, the stream ends with
/// [`Error::InputCut`]. Dropping the stream leaves the run going, unless it was to be cancelled then and no connection
/// broke since its start.
pub struct RunStream {
    origin: Origin,
    run_id: String,
    state: State,
    first: Option<Event>,
    /// Bytes that we have, of standard output and of standard error.
    have: Have,
    input: Input,
    upload: UploadFailure,
    patience: Option<Patience>,
    tries: Option<Tries>,
}

enum State {
    // Boxed: a stream of tonic is large, and this one is moved.
    Open(Box<Streaming<pb::RunEvent>>),
    Reconnecting(Reconnection),
    Ended,
}

/// Gives the stream that goes on, and the tries that it took.
type Reconnection = Pin<Box<dyn Future<Output = Result<(Streaming<pb::RunEvent>, Tries)>> + Send>>;

/// Standard input on its way to the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    /// The command does not have all of it, as far as is known.
    OnItsWay,
    /// Nothing is to be sent any more.
    Done,
}

/// How many bytes of each stream a caller has.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Have {
    pub(crate) stdout: u64,
    pub(crate) stderr: u64,
}

/// How long the daemon may be silent while we wait. Time that the consumer spends elsewhere does not count.
struct Patience {
    limit: Duration,
    sleep: Pin<Box<Sleep>>,
    waiting: bool,
}

/// A stream whose run has an id.
pub(crate) struct Begun {
    pub(crate) run_id: String,
    pub(crate) events: Streaming<pb::RunEvent>,
}

impl Begun {
    /// Takes the first event, which is the run's id.
    pub(crate) async fn from_wire(mut events: Streaming<pb::RunEvent>) -> Result<Self> {
        let first = events.message().await?.ok_or(Error::StreamCut {
            missing: "the run's id",
        })?;
        match first.event {
            Some(Wire::Started(started)) => Ok(Self {
                run_id: started.run_id,
                events,
            }),
            _ => Err(Error::Protocol {
                what: "a stream does not begin with the run's id",
            }),
        }
    }
}

impl RunStream {
    pub(crate) fn new(origin: Origin, begun: Begun, have: Have) -> Self {
        Self {
            tries: Some(Tries::new(origin.client.reconnect)),
            origin,
            first: Some(Event::Started {
                run_id: begun.run_id.clone(),
            }),
            run_id: begun.run_id,
            state: State::Open(Box::new(begun.events)),
            have,
            input: Input::Done,
            upload: UploadFailure::never(),
            patience: None,
        }
    }

    /// Adds the input that is sent beside it.
    pub(crate) fn with_input(mut self, upload: UploadFailure, input: Input) -> Self {
        (self.upload, self.input) = (upload, input);
        self
    }

    /// Adds how long the daemon may be silent.
    pub(crate) fn with_patience(mut self, limit: Option<Duration>) -> Self {
        self.patience = limit.map(|limit| Patience {
            limit,
            sleep: Box::pin(tokio::time::sleep(limit)),
            waiting: false,
        });
        self
    }

    /// The run's id.
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// How many bytes of an output stream came before the next event: where an attach goes on that is made by hand.
    pub fn offset(&self, stream: StdStream) -> u64 {
        match stream {
            StdStream::Stdout => self.have.stdout,
            StdStream::Stderr => self.have.stderr,
        }
    }

    /// The next event; `None` after the last.
    pub async fn next(&mut self) -> Option<Result<Event>> {
        poll_fn(|cx| self.poll_event(cx)).await
    }

    /// Reads it to its end and gives what is left of it as an awaited run would: each stream cut to `budget` bytes, at
    /// most 8 MiB.
    ///
    /// # Errors
    /// The stream's.
    pub async fn collect(mut self, budget: u64) -> Result<Output> {
        let mut collected = Collected::new(budget)?;
        while let Some(event) = self.next().await {
            match event? {
                Event::Started { .. } => {}
                Event::Output {
                    stream,
                    offset,
                    data,
                } => collected.push(stream, offset, &data),
                Event::Gap { stream, to, .. } => collected.skip_to(stream, to),
                Event::Exited(outcome) => return collected.finish(outcome),
            }
        }
        Err(Error::StreamCut {
            missing: "the run's end",
        })
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Event>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        let event = ready!(self.poll_state(cx));
        if let Some(patience) = &mut self.patience {
            patience.waiting = false;
        }
        if matches!(event, Some(Err(_) | Ok(Event::Exited(_)))) {
            self.state = State::Ended;
        }
        Poll::Ready(event)
    }

    fn poll_state(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Event>>> {
        loop {
            let event = match &mut self.state {
                State::Ended => return Poll::Ready(None),
                State::Open(events) => match Pin::new(events.as_mut()).poll_next(cx) {
                    Poll::Ready(event) => event,
                    Poll::Pending => return self.poll_trouble(cx).map(|e| Some(Err(e))),
                },
                State::Reconnecting(reconnection) => match reconnection.as_mut().poll(cx) {
                    Poll::Ready(Ok((events, tries))) => {
                        self.tries = Some(tries);
                        self.state = State::Open(Box::new(events));
                        continue;
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(Some(Err(error))),
                    Poll::Pending => return self.poll_trouble(cx).map(|e| Some(Err(e))),
                },
            };
            let error = match event {
                Some(Ok(event)) => match self.take(event).transpose() {
                    Some(event) => return Poll::Ready(Some(event)),
                    None => continue,
                },
                Some(Err(status)) => status.into(),
                None => Error::StreamCut {
                    missing: "the run's end",
                },
            };
            match self.reconnection(error) {
                Ok(reconnection) => self.state = State::Reconnecting(reconnection),
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
    }

    /// Notes what an event says of where we are; `None` if it is not for the consumer.
    fn take(&mut self, event: pb::RunEvent) -> Result<Option<Event>> {
        let event = match present(event.event, "an event is empty or unknown")? {
            Wire::StdinTaken(_) => {
                self.input = Input::Done;
                return Ok(None);
            }
            event => Event::from_wire(event)?,
        };
        let (stream, from, to) = match &event {
            Event::Output {
                stream,
                offset,
                data,
            } => (*stream, *offset, *offset + data.len() as u64),
            Event::Gap { stream, from, to } => (*stream, *from, *to),
            Event::Started { .. } | Event::Exited(_) => return Ok(Some(event)),
        };
        let have = self.have.of(stream);
        if from != *have || to < from {
            return Err(Error::Protocol {
                what: "output does not go on where it was",
            });
        }
        *have = to;
        Ok(Some(event))
    }

    /// What goes on after this error; the error where nothing does.
    fn reconnection(&mut self, error: Error) -> Result<Reconnection> {
        if !is_break(&error) {
            return Err(error);
        }
        if self.input == Input::OnItsWay {
            let source = Box::new(error);
            return Err(Error::InputCut { source });
        }
        let (origin, run_id, have) = (self.origin.clone(), self.run_id.clone(), self.have);
        let limit = origin.client.reconnect;
        let mut tries = self.tries.take().unwrap_or_else(|| Tries::new(limit));
        Ok(Box::pin(async move {
            tries.pause(error).await?;
            let begun = tries.answer(|| origin.attach(&run_id, have)).await?;
            Ok((begun.events, tries))
        }))
    }

    fn poll_trouble(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        if let Poll::Ready(error) = self.upload.poll(cx) {
            return Poll::Ready(Error::Upload(error));
        }
        match &mut self.patience {
            Some(patience) => patience.poll(cx),
            None => Poll::Pending,
        }
    }
}

impl Have {
    fn of(&mut self, stream: StdStream) -> &mut u64 {
        match stream {
            StdStream::Stdout => &mut self.stdout,
            StdStream::Stderr => &mut self.stderr,
        }
    }
}

impl Patience {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        if !self.waiting {
            self.waiting = true;
            self.sleep.as_mut().reset(Instant::now() + self.limit);
        }
        self.sleep
            .as_mut()
            .poll(cx)
            .map(|()| Error::Deadline { after: self.limit })
    }
}

impl Stream for RunStream {
    type Item = Result<Event>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_event(cx)
    }
}

impl fmt::Debug for RunStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunStream")
            .field("run_id", &self.run_id)
            .field("ended", &matches!(self.state, State::Ended))
            .finish_non_exhaustive()
    }
}

impl Event {
    fn from_wire(event: Wire) -> Result<Self> {
        Ok(match event {
            Wire::Started(started) => Self::Started {
                run_id: started.run_id,
            },
            Wire::Output(chunk) => Self::Output {
                stream: StdStream::from_wire(chunk.stream())?,
                offset: chunk.offset,
                data: chunk.data,
            },
            Wire::Gap(gap) => Self::Gap {
                stream: StdStream::from_wire(gap.stream())?,
                from: gap.from,
                to: gap.to,
            },
            Wire::Exited(result) => Self::Exited(Outcome::from_wire(result)?),
            Wire::StdinTaken(_) => {
                return Err(Error::Protocol {
                    what: "an event is out of place",
                });
            }
        })
    }
}

impl StdStream {
    fn from_wire(stream: pb::Stream) -> Result<Self> {
        match stream {
            pb::Stream::Stdout => Ok(Self::Stdout),
            pb::Stream::Stderr => Ok(Self::Stderr),
            pb::Stream::Unspecified => Err(Error::Protocol {
                what: "an output stream is unknown",
            }),
        }
    }

    pub(crate) fn to_wire(self) -> i32 {
        let stream = match self {
            Self::Stdout => pb::Stream::Stdout,
            Self::Stderr => pb::Stream::Stderr,
        };
        stream.into()
    }
}
