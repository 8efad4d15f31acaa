//! Going on after the connection broke: for how long it is tried, and what is worth trying again.
//!
//! Only what the daemon cannot have answered is tried again, never a refusal. It is for calls that may be made twice.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;
use tonic::Code;

use crate::error::{Error, Result};
use crate::wire::within;

/// How long is tried unless the client says otherwise: a daemon's restart takes less, also with many sandboxes.
pub(crate) const RECONNECT_WITHIN: Duration = Duration::from_secs(30);
/// First and longest pause between two tries.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_LONGEST: Duration = Duration::from_secs(1);
/// A connection that held for this long has recovered: the next break is a new one.
const RECOVERED_AFTER: Duration = Duration::from_secs(1);

/// The tries after one break.
#[derive(Debug)]
pub(crate) struct Tries {
    limit: Duration,
    broke: Option<Instant>,
    connected: Option<Instant>,
    pause: Duration,
}

impl Tries {
    /// Tries for as long as `limit` after a break.
    pub(crate) fn new(limit: Duration) -> Self {
        Self {
            limit,
            broke: None,
            connected: None,
            pause: PAUSE_FIRST,
        }
    }

    /// Makes a call until the daemon answers it, or for as long as is to be tried.
    pub(crate) async fn answer<T, F>(&mut self, mut call: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        loop {
            let answered = match self.left() {
                // Without a break there is no hurry.
                None => call().await,
                left => within(left, call()).await,
            };
            match answered {
                Err(error) if is_break(&error) => self.pause(error).await?,
                answered => {
                    self.connected = Some(Instant::now());
                    return answered;
                }
            }
        }
    }

    /// Waits before the next try. Gives the error back where there is to be none.
    pub(crate) async fn pause(&mut self, error: Error) -> Result<()> {
        let now = Instant::now();
        if let Some(connected) = self.connected.take()
            && now.duration_since(connected) >= RECOVERED_AFTER
        {
            *self = Self::new(self.limit);
        }
        let broke = *self.broke.get_or_insert(now);
        if now.duration_since(broke) + self.pause > self.limit {
            return Err(error);
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSE_LONGEST);
        Ok(())
    }

    /// The time that is left for a try; `None` before any break.
    fn left(&self) -> Option<Duration> {
        let broke = self.broke?;
        Some(self.limit.saturating_sub(broke.elapsed()))
    }
}

/// Whether it is the connection that failed, or a daemon that comes back.
pub(crate) fn is_break(error: &Error) -> bool {
    match error {
        Error::Transport(_) | Error::StreamCut { .. } => true,
        Error::Api(error) => error.code == Code::Unavailable,
        _ => false,
    }
}
