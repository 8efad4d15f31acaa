//! Pause, resume, and what thaws a sandbox that is needed.

use tokio::sync::OwnedRwLockWriteGuard;

use super::super::failure::did_not_settle;
use super::super::handle::{Paused, Reply};
use super::super::pause::SETTLES_WITHIN;
use super::super::runtime::Runtime;
use super::super::state::{Decision, Event, Refusal, State};
use super::{Actor, answer};
use crate::error::Result;
use crate::store::Pace;

/// While it is held, nobody spawns.
pub(super) type Alone = OwnedRwLockWriteGuard<()>;

impl<R: Runtime> Actor<R> {
    /// Freezes it because a caller wants it so: its idle policy waits until it is thawed.
    pub(super) async fn pause(&mut self, reply: Reply<Paused>) {
        match self.decide(Event::Freeze) {
            Decision::Go(_) => match self.freeze_as_asked().await {
                Ok(live) => self.reclaim(live, reply),
                Err(error) => answer(reply, Err(error)),
            },
            Decision::Stay => {
                self.handle.activity().set_pace(Pace::Standing);
                self.note_unused().await;
                self.handle.update(|status| status.reason.clear());
                let paused = Paused {
                    sandbox: self.handle.view(),
                    reclaimed_bytes: None,
                };
                answer(reply, Ok(paused));
            }
            Decision::Refuse(refusal) => answer(reply, Err(self.refusal(refusal))),
        }
    }

    async fn freeze_as_asked(&mut self) -> Result<R::Live> {
        let alone = self.alone().await?;
        self.freeze(&alone, Pace::Standing, String::new()).await
    }

    /// Keeps everybody from spawning. Whoever is about to is waited for, as long as for the kernel.
    pub(super) async fn alone(&self) -> Result<Alone> {
        tokio::time::timeout(SETTLES_WITHIN, self.handle.close_gate())
            .await
            .map_err(|_| did_not_settle())
    }

    /// Freezes it while nobody spawns. What is remembered of its want of use comes first: a daemon that finds it frozen
    /// knows by that whether its policy goes on.
    pub(super) async fn freeze(
        &mut self,
        _alone: &Alone,
        pace: Pace,
        reason: String,
    ) -> Result<R::Live> {
        let live = self.handle.live_now();
        let live = live.ok_or_else(|| self.refusal(Refusal::NotRunning))?;
        self.handle.activity().set_pace(pace);
        self.note_unused().await;
        if let Err(error) = self.runtime.freeze(live.clone()).await {
            self.handle.activity().set_pace(Pace::Counting);
            self.note_unused().await;
            return Err(error);
        }
        self.handle.update(|status| {
            status.state = State::Frozen;
            status.reason = reason;
        });
        Ok(live)
    }

    /// Gives memory back and answers, aside: who needs the sandbox meanwhile need not wait for that.
    fn reclaim(&self, live: R::Live, reply: Reply<Paused>) {
        let (runtime, sandbox) = (self.runtime.clone(), self.handle.view());
        tokio::spawn(async move {
            let reclaimed_bytes = runtime.reclaim(live).await;
            let paused = Paused {
                sandbox,
                reclaimed_bytes,
            };
            answer(reply, Ok(paused));
        });
    }

    /// Thaws it because a caller wants it so.
    pub(super) async fn resume(&mut self) -> Result<()> {
        match self.decide(Event::Thaw) {
            Decision::Go(_) => match self.handle.live_now() {
                Some(live) => self.thaw(live).await.map(drop),
                None => Err(self.refusal(Refusal::NotRunning)),
            },
            Decision::Stay => Ok(()),
            Decision::Refuse(refusal) => Err(self.refusal(refusal)),
        }
    }

    /// Lets its processes go on.
    pub(super) async fn thaw(&mut self, live: R::Live) -> Result<R::Live> {
        // Before it runs: what was noted would have the next daemon freeze it again, or delete it.
        self.forget_unused().await;
        self.runtime.thaw(live.clone()).await?;
        self.handle.activity().set_pace(Pace::Counting);
        self.handle.update(|status| {
            status.state = State::Running;
            status.reason.clear();
        });
        Ok(live)
    }
}
