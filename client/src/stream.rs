//! A run as it happens: its events, in order, until it has ended.

use std::fmt;
use std::future::{Future as _, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use lodge_proto::v1 as pb;
use pb::run_event::Event as Wire;
use tokio::time::{Instant, Sleep};
use tonic::Streaming;

use crate::collect::Collected;
use crate::error::{Error, Result};
use crate::outcome::{Outcome, Output};
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

/// The events of a run. The last one is [`Event::Exited`] or an error; a stream that the daemon or the network cuts
/// short is an error, never a success. Dropping it leaves the run going, unless it was to be cancelled then.
pub struct RunStream {
    // Boxed: a stream of tonic is large, and this one is moved.
    events: Option<Box<Streaming<pb::RunEvent>>>,
    upload: UploadFailure,
    patience: Option<Patience>,
}

/// How long the daemon may be silent while we wait. Time that the consumer spends elsewhere does not count.
struct Patience {
    limit: Duration,
    sleep: Pin<Box<Sleep>>,
    waiting: bool,
}

impl RunStream {
    pub(crate) fn new(
        events: Streaming<pb::RunEvent>,
        upload: UploadFailure,
        limit: Option<Duration>,
    ) -> Self {
        let patience = limit.map(|limit| Patience {
            limit,
            sleep: Box::pin(tokio::time::sleep(limit)),
            waiting: false,
        });
        Self {
            events: Some(Box::new(events)),
            upload,
            patience,
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
        let Some(events) = &mut self.events else {
            return Poll::Ready(None);
        };
        let event = match Pin::new(events.as_mut()).poll_next(cx) {
            Poll::Ready(Some(Ok(event))) => Event::from_wire(event),
            Poll::Ready(Some(Err(status))) => Err(status.into()),
            Poll::Ready(None) => Err(Error::StreamCut {
                missing: "the run's end",
            }),
            Poll::Pending => Err(ready!(self.poll_trouble(cx))),
        };
        if let Some(patience) = &mut self.patience {
            patience.waiting = false;
        }
        if matches!(event, Err(_) | Ok(Event::Exited(_))) {
            self.events = None;
        }
        Poll::Ready(Some(event))
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
            .field("ended", &self.events.is_none())
            .finish_non_exhaustive()
    }
}

impl Event {
    fn from_wire(event: pb::RunEvent) -> Result<Self> {
        Ok(
            match present(event.event, "an event is empty or unknown")? {
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
            },
        )
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
