//! When the daemon was killed: only then may a call stay without an answer.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::watch;

/// A daemon is back within this time of a kill.
const BACK_WITHIN: Duration = Duration::from_secs(60);

/// How often it was killed, and whether it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment {
    kills: u64,
    up: bool,
}

/// Written by who kills it.
#[derive(Debug)]
pub(crate) struct Outages(watch::Sender<Moment>);

/// Read by who calls it.
#[derive(Debug, Clone)]
pub(crate) struct OutagesSeen(watch::Receiver<Moment>);

impl Outages {
    /// It runs.
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(Moment { kills: 0, up: true }))
    }

    /// For callers.
    pub(crate) fn watch(&self) -> OutagesSeen {
        OutagesSeen(self.0.subscribe())
    }

    /// It will be killed next.
    pub(crate) fn begin(&self) {
        self.0.send_modify(|now| {
            now.kills += 1;
            now.up = false;
        });
    }

    /// It runs again.
    pub(crate) fn end(&self) {
        self.0.send_modify(|now| now.up = true);
    }

    /// How often it was killed.
    pub(crate) fn kills(&self) -> u64 {
        self.0.borrow().kills
    }
}

impl OutagesSeen {
    /// Before a call.
    pub(crate) fn now(&self) -> Moment {
        *self.0.borrow()
    }

    /// Whether a call since `then` may have met an outage.
    pub(crate) fn since(&self, then: Moment) -> bool {
        !then.up || self.now() != then
    }

    /// Waits until it runs.
    pub(crate) async fn over(&mut self) -> Result<()> {
        let up = tokio::time::timeout(BACK_WITHIN, self.0.wait_for(|now| now.up)).await;
        up.context("the daemon did not come back")??;
        Ok(())
    }
}
