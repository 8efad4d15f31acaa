//! Readers that follow a log while it grows. A follower holds the writer back, but only while it makes progress: one
//! that stands still for half a minute is no longer waited for and gets a gap where the log has gone on without it.
//! Other readers (results, `ReadLog`) never hold the writer.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Piece, Pin, StreamLog};

/// How far the writer may be ahead of a follower, in bytes. Below what the log keeps from the end, so that a follower
/// that is waited for never meets a hole.
const WINDOW: u64 = 4 << 20;
/// How long a follower may stand still and still be waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where a follower is.
pub(super) struct Position {
    id: u64,
    /// Offset of its next byte.
    pub(super) at: u64,
    /// When it last moved, or began to lag.
    pub(super) since: Instant,
}

/// What the followers leave to the writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Headroom {
    /// This many bytes.
    Bytes(u64),
    /// Nothing until a follower moves, or until then.
    HeldUntil(Instant),
}

/// A reader that follows a log. Dropping it ends its hold on the writer.
pub struct Follower {
    log: Arc<StreamLog>,
    id: u64,
    at: u64,
    _pin: Pin,
}

impl Follower {
    /// Follows `log` from `offset` on.
    pub fn new(log: Arc<StreamLog>, offset: u64) -> Self {
        let pin = log.pin();
        let mut state = log.lock();
        let id = state.next_follower;
        state.next_follower += 1;
        state.followers.push(Position {
            id,
            at: offset,
            since: Instant::now(),
        });
        drop(state);
        Self {
            log,
            id,
            at: offset,
            _pin: pin,
        }
    }

    /// Offset of its next byte.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// What is at its position, without waiting for more.
    pub async fn next(&self, limit: usize) -> io::Result<Piece> {
        self.log.read(self.at, limit).await
    }

    /// Notes that everything before `offset` has been passed on.
    pub fn advance(&mut self, offset: u64) {
        self.at = offset;
        let mut state = self.log.lock();
        let id = self.id;
        if let Some(position) = state.followers.iter_mut().find(|f| f.id == id) {
            position.at = offset;
            position.since = Instant::now();
        }
        drop(state);
        self.log.moved.notify_waiters();
    }

    /// Whether everything was passed on and nothing more can come.
    pub fn is_at_the_end(&self) -> bool {
        let state = self.log.lock();
        state.sealed && state.len <= self.at
    }

    /// Waits until there is something at its position or nothing more can come.
    pub async fn ready(&self) {
        loop {
            let grown = self.log.grown.notified();
            tokio::pin!(grown);
            // Registered before the look, so that nothing is missed between the two.
            grown.as_mut().enable();
            {
                let state = self.log.lock();
                if state.len > self.at || state.sealed {
                    return;
                }
            }
            grown.await;
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let id = self.id;
        self.log.lock().followers.retain(|f| f.id != id);
        self.log.moved.notify_waiters();
    }
}

impl StreamLog {
    /// How much may be written now without leaving a follower behind; at most the window.
    pub(in crate::exec) fn headroom(&self) -> Headroom {
        let state = self.lock();
        let mut room = WINDOW;
        for follower in &state.followers {
            let lag = state.len.saturating_sub(follower.at);
            if lag < WINDOW {
                room = room.min(WINDOW - lag);
                continue;
            }
            let until = follower.since + PATIENCE;
            if Instant::now() < until {
                return Headroom::HeldUntil(until);
            }
        }
        Headroom::Bytes(room)
    }

    /// Waits until there is headroom, and says how much.
    pub(in crate::exec) async fn wait_headroom(&self) -> u64 {
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            match self.headroom() {
                Headroom::Bytes(bytes) => return bytes,
                Headroom::HeldUntil(until) => {
                    tokio::select! {
                        () = moved => {}
                        () = tokio::time::sleep_until(until.into()) => {}
                    }
                }
            }
        }
    }
}
