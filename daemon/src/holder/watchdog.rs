//! Whether a holder that somebody waits for still answers. PID 1 may be stopped (SIGSTOP from the host) or stuck; its runs' deadlines
//! are its own, so that without this a call could wait for ever.
//!
//! It ends nothing: a holder that goes on later has lost nothing.

use std::time::Duration;

use lodge_holder::protocol::{Fds, WITH_PING};
use lodge_proto::holder::{FdRole, Listen, Ping, to_holder};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout};

use super::connection::{Condition, Link, Shared};
use super::proc_stat::ProcStat;
use super::sockets;
use crate::error::chain;

/// From one look to the next.
const TURN: Duration = Duration::from_secs(4);
/// Turns in which a ping may stay unanswered. A holder answers in microseconds; the rest is for a host that is very busy.
const UNANSWERED_MAX: u32 = 3;
/// A ping that finds no room in the queue at once was not sent.
const NO_WAIT: Duration = Duration::from_millis(5);

/// Looks after one connection.
pub(super) struct Watchdog {
    turns: Interval,
    /// Whether anything was heard since the last turn.
    heard: bool,
    /// The number of the last ping.
    pings: u64,
    /// Turns since the first ping that was not answered.
    unanswered: u32,
}

impl Watchdog {
    pub(super) fn new() -> Self {
        let mut turns = interval_at(Instant::now() + TURN, TURN);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            turns,
            heard: false,
            pings: 0,
            unanswered: 0,
        }
    }

    /// Waits until it is time to look.
    pub(super) async fn turn(&mut self) {
        self.turns.tick().await;
    }

    /// Something came: whatever it is, the holder is there.
    pub(super) fn heard(&mut self, shared: &Shared) {
        self.heard = true;
        self.unanswered = 0;
        shared.note(Condition::Well);
    }

    /// Asks a quiet holder, if anybody waits for it, and says so if it has not answered for too long.
    pub(super) async fn look(&mut self, shared: &Shared, link: &Link) {
        restore_socket(shared, link).await;
        let waited_for = !shared.watched().is_empty() || shared.condition() == Condition::Silent;
        if std::mem::take(&mut self.heard) || !waited_for {
            self.unanswered = 0;
            return;
        }
        if is_stopped(shared.pid()) {
            shared.note(Condition::Silent);
        }
        if link.version < WITH_PING {
            // Of one that cannot be asked only the kernel knows.
            if !is_stopped(shared.pid()) {
                shared.note(Condition::Well);
            }
            return;
        }
        // Again from time to time: the one before may have found no room.
        if self.unanswered.is_multiple_of(UNANSWERED_MAX) {
            self.ping(shared, link).await;
        }
        self.unanswered = self.unanswered.saturating_add(1);
        if self.unanswered > UNANSWERED_MAX {
            shared.note(Condition::Silent);
        }
    }

    async fn ping(&mut self, shared: &Shared, link: &Link) {
        self.pings += 1;
        let ping = to_holder::Message::Ping(Ping { number: self.pings });
        // One that cannot be sent is one that is not answered.
        let _ = timeout(NO_WAIT, shared.send(link, ping, &Fds::default())).await;
    }
}

/// Whether the kernel says that a process is stopped or being traced.
fn is_stopped(pid: i32) -> bool {
    ProcStat::of(pid).is_ok_and(|stat| stat.is_stopped())
}

/// Gives a holder another socket where its own is gone from the file system: without one, the next daemon could not find it.
async fn restore_socket(shared: &Shared, link: &Link) {
    if link.version < WITH_PING || shared.socket().exists() || shared.is_stopping() {
        return;
    }
    match sockets::listen_at(shared.socket()) {
        Ok(listener) => {
            let mut fds = Fds::default();
            fds.push(FdRole::Listener, listener);
            let told = shared
                .send(link, to_holder::Message::Listen(Listen {}), &fds)
                .await;
            match told {
                Ok(()) => tracing::warn!(
                    pid = shared.pid(),
                    "the socket of a sandbox's PID 1 was gone and is there again"
                ),
                Err(error) => tracing::warn!(error = %chain(&error), "PID 1 got no new socket"),
            }
        }
        Err(error) => tracing::warn!(error = %chain(&error), "PID 1 got no new socket"),
    }
}
