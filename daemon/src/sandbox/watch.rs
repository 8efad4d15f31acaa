//! Watching sandboxes: each as it is, then `Synced`, then each change. Wakes nothing, and is no activity.
//!
//! Its memory is that of [`changes`](super::changes): nothing is kept of a sandbox but its id until its watcher comes for
//! it, and then it is told as it is at that moment.

use std::collections::BTreeMap;
use std::task::{Context, Poll, ready};

use super::changes::{Changed, Scope, Subscription};
use super::handle::View;
use super::id::{SandboxId, Tenant};
use super::live::Live;
use super::table::Table;
use super::{Filter, SandboxRef};
use crate::error::Result;

/// What is to be watched.
#[derive(Debug, Clone, Default)]
pub struct Watching {
    /// This sandbox alone.
    pub sandbox: Option<SandboxRef>,
    /// Those that have all of these labels.
    pub labels: BTreeMap<String, String>,
}

/// What a watcher is told.
#[derive(Debug)]
pub enum Told {
    /// A sandbox as it is now. One that no longer has the labels that are watched is told a last time.
    Sandbox(Box<View>),
    /// This one is gone.
    Deleted(SandboxId),
    /// All that there were are told.
    Synced,
}

/// What somebody watches. Ends when the one sandbox that it is about is gone.
pub struct Watch<L = Live> {
    table: Table<L>,
    subscription: Subscription,
    tenant: Tenant,
    filter: Filter,
    is_of_one: bool,
    /// Changes from this number on came after the beginning; `None` once that is told.
    synced_at: Option<u64>,
    ended: bool,
}

impl<L: Clone> Watch<L> {
    /// Begins to watch. `one` is the sandbox that it is about, if it is about one.
    pub(super) fn begin(
        table: &Table<L>,
        tenant: &Tenant,
        one: Option<&SandboxId>,
        labels: BTreeMap<String, String>,
    ) -> Result<Self> {
        let scope = match one {
            Some(id) => Scope::One(id.clone()),
            None => Scope::Tenant(tenant.clone()),
        };
        // Before the table is read: what comes meanwhile is told twice, and not never.
        let subscription = table.changes().subscribe(scope)?;
        let all = table.all();
        let mine = all.iter().filter(|handle| {
            handle.identity().tenant == *tenant && one.is_none_or(|id| id == handle.id())
        });
        let synced_at = subscription.begin_with(mine.map(|handle| handle.id()));
        Ok(Self {
            table: table.clone(),
            subscription,
            tenant: tenant.clone(),
            filter: Filter {
                labels,
                states: Vec::new(),
            },
            is_of_one: one.is_some(),
            synced_at: Some(synced_at),
            ended: false,
        })
    }

    /// What is to be told next; `None` after the last.
    pub fn poll_told(&mut self, cx: &mut Context<'_>) -> Poll<Option<Told>> {
        while !self.ended {
            if self.is_synced_now() {
                self.synced_at = None;
                return Poll::Ready(Some(Told::Synced));
            }
            let changed = ready!(self.subscription.poll_next(cx));
            if let Some(told) = self.tell(&changed) {
                return Poll::Ready(Some(told));
            }
        }
        Poll::Ready(None)
    }

    fn is_synced_now(&self) -> bool {
        self.synced_at.is_some_and(|at| {
            let next = self.subscription.next_number();
            next.is_none_or(|next| next >= at)
        })
    }

    fn tell(&mut self, changed: &Changed) -> Option<Told> {
        let Some(handle) = self.table.by_id(&self.tenant, &changed.id) else {
            self.subscription.forget(&changed.id);
            self.ended = self.is_of_one;
            return changed.told.then(|| Told::Deleted(changed.id.clone()));
        };
        let view = handle.view();
        let is_meant = self.filter.matches(view.state, &view.labels);
        if !is_meant {
            self.subscription.forget(&changed.id);
        }
        (is_meant || changed.told).then(|| Told::Sandbox(Box::new(view)))
    }
}
