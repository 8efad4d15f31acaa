//! A run as a sequence of events: its output from any offset on, what was missed, and its end.
//!
//! The output comes from the log, never from the pipe, so a run that has ended is told like one that lives. Whoever takes
//! events slowly holds the command back, within the bounds of `log::Follower`. The two streams take turns; their order to
//! each other is only as good as the pipes tell.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::end::RunResult;
use super::log::{Follower, Piece, Stream};
use super::run::Run;
use crate::error::{Error, ErrorKind, Result};

/// Most bytes of one event.
pub const CHUNK_MAX_BYTES: usize = 64 << 10;
/// Bytes read from the log at once: enough that threads are not the cost.
const BATCH_BYTES: usize = 256 << 10;
/// Bytes in the batches of all streams; once they are used up, new ones read in batches of one event.
const BATCHES_MAX_BYTES: usize = 128 << 20;
/// Streams at once, of all runs. Each holds a batch for each output and what the transport has of it.
const OPEN_MAX: usize = 2_048;

/// The places of open streams. Cheap to clone.
#[derive(Clone)]
pub struct Places(Arc<Semaphore>);

/// The place of one open stream; dropping it gives it back.
pub struct Place {
    _permit: OwnedSemaphorePermit,
    batch_bytes: usize,
}

impl Places {
    /// As many as a daemon has.
    pub fn new() -> Self {
        Self(Arc::new(Semaphore::new(OPEN_MAX)))
    }

    /// Takes one, or refuses at once.
    pub fn take(&self) -> Result<Place> {
        let permit = Arc::clone(&self.0).try_acquire_owned();
        let permit = permit.map_err(|_| {
            Error::new(
                ErrorKind::ResourceExhausted,
                "TOO_MANY_STREAMS",
                format!("{OPEN_MAX} streams of runs are open on this host"),
            )
            .hint("end some of them; `lodge runs` and `lodge logs` (GetRun and ReadLog in the API) need none")
        })?;
        let open = OPEN_MAX - self.0.available_permits();
        let batch_bytes = match 2 * open * BATCH_BYTES <= BATCHES_MAX_BYTES {
            true => BATCH_BYTES,
            false => CHUNK_MAX_BYTES,
        };
        Ok(Place {
            _permit: permit,
            batch_bytes,
        })
    }
}

impl Default for Places {
    fn default() -> Self {
        Self::new()
    }
}

/// How much of each stream a caller has already, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offsets {
    /// Of standard output.
    pub stdout: u64,
    /// Of standard error.
    pub stderr: u64,
}

impl Offsets {
    fn of(self, stream: Stream) -> u64 {
        match stream {
            Stream::Stdout => self.stdout,
            Stream::Stderr => self.stderr,
        }
    }
}

/// What happened next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Output.
    Output {
        /// Which stream.
        stream: Stream,
        /// Bytes of this stream before `data`.
        offset: u64,
        /// At most 64 KiB.
        data: Bytes,
    },
    /// Output that this reader will not get.
    Gap {
        /// Which stream.
        stream: Stream,
        /// The first missing byte.
        from: u64,
        /// The first byte after the gap.
        to: u64,
    },
    /// The end; the last event.
    Exited(Arc<RunResult>),
}

/// The events of a run.
pub struct Events {
    run: Run,
    place: Place,
    /// In the order in which they are asked next.
    readers: [Reader; 2],
    ended: Option<Arc<RunResult>>,
}

struct Reader {
    stream: Stream,
    follower: Follower,
    /// Read, and not yet passed on.
    batch: Bytes,
    /// End of the event that was passed on last: the next call says that it was taken.
    passed: u64,
}

impl Events {
    /// Follows a run from its beginning. From here on it is held back by who takes the events.
    pub fn of(run: Run, place: Place) -> Self {
        Self::unchecked(run, Offsets::default(), place)
    }

    /// Follows a run from these offsets on. One beyond the end is OUT_OF_RANGE: it cannot have come from this run.
    pub fn from(run: Run, offsets: Offsets, place: Place) -> Result<Self> {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let end = run.output_end(stream);
            if offsets.of(stream) > end {
                return Err(beyond_the_end(stream, offsets.of(stream), end));
            }
        }
        Ok(Self::unchecked(run, offsets, place))
    }

    fn unchecked(run: Run, offsets: Offsets, place: Place) -> Self {
        let reader = |stream| Reader {
            stream,
            follower: Follower::new(Arc::clone(run.log(stream)), offsets.of(stream)),
            batch: Bytes::new(),
            passed: offsets.of(stream),
        };
        let readers = [reader(Stream::Stdout), reader(Stream::Stderr)];
        Self {
            run,
            place,
            readers,
            ended: None,
        }
    }

    /// Waits for the next event. After `Exited` there is none.
    pub async fn next(&mut self) -> Result<Event> {
        loop {
            for turn in 0..self.readers.len() {
                if let Some(event) = self.readers[turn]
                    .next(&self.run, self.place.batch_bytes)
                    .await?
                {
                    // The other one comes first the next time.
                    self.readers.rotate_left(turn + 1);
                    return Ok(event);
                }
            }
            match &self.ended {
                Some(result) => return Ok(Event::Exited(Arc::clone(result))),
                None => self.wait().await?,
            }
        }
    }

    async fn wait(&mut self) -> Result<()> {
        let [first, second] = &self.readers;
        tokio::select! {
            () = first.follower.ready(), if !first.is_done() => {}
            () = second.follower.ready(), if !second.is_done() => {}
            result = self.run.end() => self.ended = Some(result?),
        }
        Ok(())
    }
}

impl Reader {
    async fn next(&mut self, run: &Run, batch_bytes: usize) -> Result<Option<Event>> {
        if self.passed > self.follower.position() {
            self.follower.advance(self.passed);
        }
        if self.batch.is_empty() {
            let left = self.limit(run).saturating_sub(self.passed);
            let want = usize::try_from(left).unwrap_or(usize::MAX).min(batch_bytes);
            if want == 0 {
                return Ok(None);
            }
            let piece = self.follower.next(want).await;
            // Asked again: what a survivor wrote meanwhile is not of this result.
            let limit = self.limit(run);
            match piece
                .map_err(|e| Error::internal("LOG_UNREADABLE", "the run's log cannot be read", e))?
            {
                Piece::End => return Ok(None),
                Piece::Data { mut bytes, .. } => {
                    let left = limit.saturating_sub(self.passed);
                    bytes.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                    self.batch = bytes;
                }
                Piece::Gap { from, to } => {
                    self.passed = to.min(limit);
                    return Ok((self.passed > from).then_some(Event::Gap {
                        stream: self.stream,
                        from,
                        to: self.passed,
                    }));
                }
            }
        }
        if self.batch.is_empty() {
            return Ok(None);
        }
        let data = self.batch.split_to(self.batch.len().min(CHUNK_MAX_BYTES));
        let offset = self.passed;
        self.passed += data.len() as u64;
        Ok(Some(Event::Output {
            stream: self.stream,
            offset,
            data,
        }))
    }

    /// Up to which offset a stream is told: the result's count once there is one; what comes later is in the log.
    fn limit(&self, run: &Run) -> u64 {
        run.result_end(self.stream).unwrap_or(u64::MAX)
    }

    /// Whether this stream has told all that it will ever tell.
    fn is_done(&self) -> bool {
        self.follower.is_at_the_end()
    }
}

/// The refusal of an offset that no byte of the stream has had yet.
pub fn beyond_the_end(stream: Stream, offset: u64, end: u64) -> Error {
    let name = stream.file_name();
    let message =
        format!("offset {offset} is beyond the end of {name}, which has bytes 0 to {end}");
    Error::new(ErrorKind::OutOfRange, "OFFSET_BEYOND_END", message)
        .hint(format!("ask from an offset that is not above {end}"))
        .detail("stream", name)
        .detail("earliest_offset", "0")
        .detail("end_offset", end.to_string())
}
