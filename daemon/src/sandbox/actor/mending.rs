//! What follows where a change did not even fail: it panicked, so that nobody knows how far it came. The host is asked to
//! have the sandbox be what it says it is; only one of which that cannot be had is damaged.

use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;

use super::super::failure::panicked;
use super::super::runtime::Runtime;
use super::super::state::State;
use super::{Actor, NOT_DELETED, Remedy, unheard};
use crate::error::{Error, Result};
use crate::store::Pace;

/// Why it is damaged.
const UNKNOWN: &str = "a change of it was cut off by a fault of lodged";

impl<R: Runtime> Actor<R> {
    /// Finds out how it is after a panic. Whoever asked for the change has been told that it failed.
    pub(super) async fn settle(&mut self) {
        tracing::error!(sandbox = %self.handle.id(), "a change of a sandbox panicked");
        self.try_later();
        let settled = match (self.handle.state(), self.handle.live_now()) {
            (State::Deleting, _) => Err(self.damage(NOT_DELETED, Remedy::None, panicked())),
            (State::Damaged, _) => Ok(()),
            (State::Frozen, Some(live)) => self.settle_frozen(live).await,
            (_, Some(live)) => self.settle_running(live).await,
            (_, None) => self.end_again().await,
        };
        if let Err(error) = settled {
            unheard(&error);
        }
    }

    /// Half-way out of its pause: it stays paused, unless that cannot be had any more.
    async fn settle_frozen(&mut self, live: R::Live) -> Result<()> {
        match caught(self.runtime.freeze(live.clone())).await {
            Ok(()) => caught(self.note()).await,
            Err(_) => self.settle_running(live).await,
        }
    }

    /// Half-way into a pause, or not at all: it goes on.
    async fn settle_running(&mut self, live: R::Live) -> Result<()> {
        if let Err(error) = caught(self.runtime.thaw(live)).await {
            self.handle.take_live(State::Damaged);
            return Err(self.damage(UNKNOWN, Remedy::EndAgain, error));
        }
        self.handle.activity().set_pace(Pace::Counting);
        self.handle.update(|status| {
            status.state = State::Running;
            status.reason.clear();
        });
        caught(self.note()).await
    }

    async fn note(&mut self) -> Result<()> {
        self.note_unused().await;
        Ok(())
    }

    /// Ends whatever it may still have. It is stopped then.
    pub(super) async fn end_again(&mut self) -> Result<()> {
        let ended = caught(self.runtime.end_leftovers(self.handle.id().clone())).await;
        self.enter_ended(ended, State::Stopped)
    }
}

/// A panic as a failure.
pub(super) async fn caught<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T> {
    let done = AssertUnwindSafe(work).catch_unwind().await;
    done.unwrap_or_else(|_| Err(panicked()))
}
