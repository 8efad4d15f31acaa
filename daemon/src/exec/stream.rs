//! A run as a sequence of events: its output as it comes, what was missed, and its end.
//!
//! The output comes from the log, never from the pipe. Whoever takes events slowly holds the command back, within the
//! bounds of `log::Follower`. The two streams take turns; their order to each other is only as good as the pipes tell.

use std::sync::Arc;

use bytes::Bytes;

use super::end::RunResult;
use super::log::{Follower, Piece, Stream};
use super::run::Run;
use crate::error::{Error, Result};

/// Most bytes of one event.
pub const CHUNK_MAX_BYTES: usize = 64 << 10;
/// Bytes read from the log at once: few enough for many slow readers, enough that threads are not the cost.
const BATCH_BYTES: usize = 256 << 10;

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

/// The events of a run, from its beginning.
pub struct Events {
    run: Run,
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
    /// Follows a run. From here on it is held back by who takes the events.
    pub fn of(run: Run) -> Self {
        let reader = |stream| Reader {
            stream,
            follower: Follower::new(Arc::clone(run.log(stream)), 0),
            batch: Bytes::new(),
            passed: 0,
        };
        let readers = [reader(Stream::Stdout), reader(Stream::Stderr)];
        Self {
            run,
            readers,
            ended: None,
        }
    }

    /// Waits for the next event. After `Exited` there is none.
    pub async fn next(&mut self) -> Result<Event> {
        loop {
            for turn in 0..self.readers.len() {
                let limit = self.limit(self.readers[turn].stream);
                if let Some(event) = self.readers[turn].next(limit).await? {
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

    /// Up to which offset a stream is told: the result's count once there is one; what comes later is in the log.
    fn limit(&self, stream: Stream) -> u64 {
        match (&self.ended, stream) {
            (None, _) => u64::MAX,
            (Some(result), Stream::Stdout) => result.stdout_bytes,
            (Some(result), Stream::Stderr) => result.stderr_bytes,
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
    async fn next(&mut self, limit: u64) -> Result<Option<Event>> {
        if self.passed > self.follower.position() {
            self.follower.advance(self.passed);
        }
        if self.batch.is_empty() {
            let left = limit.saturating_sub(self.passed);
            let want = usize::try_from(left).unwrap_or(usize::MAX).min(BATCH_BYTES);
            if want == 0 {
                return Ok(None);
            }
            let piece = self.follower.next(want).await;
            match piece
                .map_err(|e| Error::internal("LOG_UNREADABLE", "the run's log cannot be read", e))?
            {
                Piece::End => return Ok(None),
                Piece::Data { bytes, .. } => self.batch = bytes,
                Piece::Gap { from, to } => {
                    self.passed = to.min(limit);
                    return Ok(Some(Event::Gap {
                        stream: self.stream,
                        from,
                        to: self.passed,
                    }));
                }
            }
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

    /// Whether this stream has told all that it will ever tell.
    fn is_done(&self) -> bool {
        self.follower.is_at_the_end()
    }
}
