//! Update: limits, idle policy and labels, all of it or nothing.

use std::sync::Arc;

use super::super::handle::View;
use super::super::limits::{self, LimitStatus};
use super::super::runtime::{Relimit, Runtime};
use super::super::state::{Decision, Event};
use super::super::update::Change;
use super::Actor;
use crate::error::Result;
use crate::store::Record;

impl<R: Runtime> Actor<R> {
    /// Changes it. Kernel and storage driver first, since they may refuse; then the record; then it is told.
    pub(super) async fn update(&mut self, change: Change) -> Result<View> {
        if let Decision::Refuse(refusal) = self.decide(Event::Update) {
            return Err(self.refusal(refusal));
        }
        let old = self.record()?;
        let mut new = Record::clone(&old);
        new.spec = change.on(&old.spec)?;
        let expected = self.runtime.expected(&new.spec.limits);
        limits::statuses(&change.limits, &expected, change.shortfall)?;
        let new = Arc::new(new);
        let relimit = Relimit {
            old: Arc::clone(&old),
            new: Arc::clone(&new),
            asked: change.limits,
            shortfall: change.shortfall,
        };
        self.promised.change(&old.spec.limits, &new.spec.limits)?;
        let limits = if change.limits == limits::RequestedLimits::default() {
            None
        } else {
            let limited = self.limit(relimit.clone()).await;
            if limited.is_err() {
                self.promised.change_back(&old.spec.limits);
            }
            Some(limited?)
        };
        if let Err(error) = self.runtime.write(Arc::clone(&new)).await {
            self.take_back(relimit).await;
            self.promised.change_back(&old.spec.limits);
            return Err(error);
        }
        self.handle.update(|status| {
            status.spec = Some(Arc::new(new.spec.clone()));
            if let Some(limits) = limits {
                status.limits = limits;
            }
        });
        self.record = Some(new);
        Ok(self.handle.view())
    }

    async fn limit(&self, relimit: Relimit) -> Result<Vec<LimitStatus>> {
        self.runtime.limit(self.handle.live_now(), relimit).await
    }

    /// A record that could not be written may be on the disk all the same: the old one is written over it.
    async fn take_back(&self, relimit: Relimit) {
        let back = relimit.back();
        if let Err(error) = self.runtime.write(Arc::clone(&back.new)).await {
            tracing::warn!(sandbox = %self.handle.id(), error = %error.chain(), "record not taken back");
        }
        if let Err(error) = self.limit(back).await {
            tracing::warn!(sandbox = %self.handle.id(), error = %error.chain(), "limits not taken back");
        }
    }
}
