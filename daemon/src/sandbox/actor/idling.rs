//! The idle policy at work: one timer per sandbox, in its own task.
//!
//! The path of a run pays nothing for it but a lock: while a sandbox is in use its task looks again after the shortest time
//! in which something could be due. Only the first use after it was noted that nobody uses it wakes the task, which then
//! takes the note away.

use std::time::Duration;

use tokio::time::Instant;

use super::super::idle::IdlePolicy;
use super::super::runtime::{Cause, Runtime};
use super::super::state::{Event, State};
use super::pausing::Alone;
use super::{Actor, Next};
use crate::error::{Error, Result};
use crate::store::{Pace, Unused};

/// For so long it has not been used when that is noted first: less is not worth a write.
const NOTED_AFTER: Duration = Duration::from_secs(60);
/// How often the note is written anew: a reboot costs at most so much of what has been counted.
const NOTED_EVERY: Duration = Duration::from_secs(3600);
/// How often it is looked at while it is in use, at most, however short the times of its policy are.
const LOOKED_AT_EVERY: Duration = Duration::from_millis(100);
/// After a freeze that was not possible it is tried again.
const TRIED_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// When a sandbox's task looks at its want of use, and what was noted.
#[derive(Default)]
pub(crate) struct Watchman {
    /// `None`: not before something changes.
    next: Option<Instant>,
    noted: Option<Instant>,
    /// What was due could not be done: nothing is tried before this.
    not_before: Option<Instant>,
}

impl Watchman {
    /// Of a sandbox whose want of use an earlier daemon noted.
    pub(crate) fn with_note() -> Self {
        Self {
            noted: Some(Instant::now()),
            ..Self::default()
        }
    }

    /// How much longer until its want of use is noted, if that goes on. `None`: it is in use.
    fn note_due_in(&self, unused: Option<Duration>) -> Duration {
        match (self.noted, unused) {
            (Some(noted), Some(_)) => NOTED_EVERY.saturating_sub(noted.elapsed()),
            (_, unused) => NOTED_AFTER.saturating_sub(unused.unwrap_or_default()),
        }
    }

    /// Waits until it is time to look.
    pub(super) async fn time_to_look(&self) {
        match self.next {
            Some(next) => tokio::time::sleep_until(next).await,
            None => std::future::pending().await,
        }
    }
}

impl<R: Runtime> Actor<R> {
    fn policy(&self) -> Option<IdlePolicy> {
        self.record.as_ref().map(|record| record.spec.idle)
    }

    /// Sets the time of the next look, by state, policy and use as they are now.
    pub(super) fn set_watch(&mut self) {
        let (now, state) = (Instant::now(), self.handle.state());
        let activity = self.handle.activity();
        let watched = matches!(state, State::Running | State::Frozen | State::Stopped);
        let Some(policy) = self.policy().filter(|_| watched) else {
            self.watchman.next = None;
            return;
        };
        // A use that begins now is told only if there is a note to take away.
        let unused = match self.watchman.noted {
            Some(_) => activity.tell_next(),
            None => activity.idle_for(),
        };
        // One that is in use is not due before the time has passed as a whole.
        let due = match (policy.due_in(state, unused.unwrap_or_default()), unused) {
            (Some(due), None) => Some(due.max(LOOKED_AT_EVERY)),
            (due, _) => due,
        };
        let note = self.watchman.note_due_in(unused);
        self.watchman.next = match activity.pace() {
            Pace::Standing if unused.is_some() => None,
            _ => now.checked_add(due.map_or(note, |due| due.min(note))),
        };
        self.watchman.next = self.watchman.next.max(self.watchman.not_before.take());
    }

    /// Somebody uses it: what was noted does not hold any more. That a caller paused it does, until it is thawed: without
    /// that note the next daemon would take the pause for want of use.
    pub(super) async fn on_used(&mut self) {
        match self.handle.activity().pace() {
            Pace::Standing => self.note_unused().await,
            Pace::Counting => self.forget_unused().await,
        }
    }

    /// Takes away what was noted.
    pub(super) async fn forget_unused(&mut self) {
        if self.watchman.noted.take().is_some() {
            self.runtime
                .note_unused(self.handle.id().clone(), None)
                .await;
        }
    }

    /// Notes for how long it has not been used.
    pub(super) async fn note_unused(&mut self) {
        let activity = self.handle.activity();
        let unused = Unused {
            // A use that begins while this is written is told: the note does not hold then.
            time: activity.tell_next().unwrap_or_default(),
            pace: activity.pace(),
        };
        self.watchman.noted = Some(Instant::now());
        self.runtime
            .note_unused(self.handle.id().clone(), Some(unused))
            .await;
    }

    /// It is time to look: does what is due, or notes that nobody uses it.
    pub(super) async fn on_look(&mut self) -> Next {
        let Some((policy, unused)) = self.policy().zip(self.handle.activity().idle_for()) else {
            return Next::Serve;
        };
        match policy.due(self.handle.state(), unused) {
            Some(Event::IdleFreeze) => self.idle_freeze(&policy).await,
            Some(Event::IdleStop) => self.idle_stop(&policy).await,
            Some(Event::IdleDelete) => return self.idle_delete(&policy).await,
            _ if self.watchman.note_due_in(Some(unused)).is_zero() => self.note_unused().await,
            _ => {}
        }
        Next::Serve
    }

    async fn idle_freeze(&mut self, policy: &IdlePolicy) {
        match self.freeze_unused(policy).await {
            Ok(Some(live)) => {
                tracing::info!(sandbox = %self.handle.id(), "frozen: nobody uses it");
                let runtime = self.runtime.clone();
                tokio::spawn(async move { runtime.reclaim(live).await });
            }
            Ok(None) => {}
            Err(error) => {
                self.log_idle("freeze", &error);
                self.try_later();
            }
        }
    }

    /// What was due waits: it would fail again at once.
    pub(super) fn try_later(&mut self) {
        self.watchman.not_before = Instant::now().checked_add(TRIED_AGAIN_AFTER);
    }

    /// Keeps everybody from spawning, unless somebody is about to all the time.
    async fn alone_to(&mut self, what: &str) -> Option<Alone> {
        match self.alone().await {
            Ok(alone) => Some(alone),
            Err(error) => {
                self.log_idle(what, &error);
                self.try_later();
                None
            }
        }
    }

    /// Freezes it unless somebody came in before the gate was closed.
    async fn freeze_unused(&mut self, policy: &IdlePolicy) -> Result<Option<R::Live>> {
        let alone = self.alone().await?;
        let unused = self.handle.activity().idle_for().unwrap_or_default();
        if policy.due(self.handle.state(), unused) != Some(Event::IdleFreeze) {
            return Ok(None);
        }
        let reason = reason("frozen", unused);
        self.freeze(&alone, Pace::Counting, reason).await.map(Some)
    }

    async fn idle_stop(&mut self, policy: &IdlePolicy) {
        let Some(alone) = self.alone_to("stop").await else {
            return;
        };
        let unused = self.handle.activity().idle_for().unwrap_or_default();
        // Somebody may have come in before the gate was closed.
        let state = self.handle.state();
        if policy.due(state, unused) != Some(Event::IdleStop) {
            return;
        }
        let live = self.handle.take_live(state);
        // Who comes now asks for a start, which comes after this.
        drop(alone);
        if let Some(live) = live
            && let Err(error) = self.end_processes(live, Cause::Asked, State::Stopped).await
        {
            return self.log_idle("stop", &error);
        }
        tracing::info!(sandbox = %self.handle.id(), "stopped: nobody uses it");
        let reason = reason("stopped", unused);
        self.handle.update(|status| status.reason = reason);
        self.note_unused().await;
    }

    async fn idle_delete(&mut self, policy: &IdlePolicy) -> Next {
        let Some(alone) = self.alone_to("delete").await else {
            return Next::Serve;
        };
        let unused = self.handle.activity().idle_for().unwrap_or_default();
        let due = policy.due(self.handle.state(), unused) == Some(Event::IdleDelete);
        // Requests that wait come first: they are use.
        if !due || !self.requests.is_empty() {
            return Next::Serve;
        }
        tracing::info!(sandbox = %self.handle.id(), "deleted: nobody uses it");
        let live = self.begin_delete();
        // Who comes now finds that it is being deleted; nobody gets leave to spawn in it any more.
        drop(alone);
        match self.finish_delete(live).await {
            Ok(()) => Next::End,
            Err(error) => {
                self.log_idle("delete", &error);
                Next::Serve
            }
        }
    }

    fn log_idle(&self, what: &str, error: &Error) {
        tracing::warn!(
            sandbox = %self.handle.id(), error = %error.chain(),
            "the idle policy could not {what} it"
        );
    }
}

fn reason(done: &str, unused: Duration) -> String {
    let unused = Duration::from_secs(unused.as_secs().max(1));
    format!(
        "{done} by its idle policy: not used for {}",
        humantime::format_duration(unused)
    )
}
