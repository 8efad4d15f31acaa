//! Who wants to know that a sandbox has changed, and of which sandboxes they have not been told yet.
//!
//! Telling of a change never waits: it puts the sandbox's id into the set of each watcher, where it is once however often
//! the sandbox changes. What the sandbox is like is looked up when the watcher comes for it. So a watcher that never comes
//! costs one id per sandbox, and holds up nobody. Without watchers a change costs one load of a counter.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use super::handle::Identity;
use super::id::{SandboxId, Tenant};
use crate::error::{Error, ErrorKind, Result};

/// Watchers at once. One for each program that shows sandboxes is enough for dozens of those.
pub(super) const WATCHERS_MAX: usize = 256;

/// Everybody who watches. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Changes(Arc<Shared>);

#[derive(Default)]
struct Shared {
    count: AtomicUsize,
    watchers: Mutex<Vec<Arc<Watcher>>>,
}

/// Tells that something in one sandbox has changed: for the parts that know nothing of watchers. Tells nobody before it
/// has been connected.
pub(crate) struct Teller {
    sandbox: Identity,
    changes: OnceLock<Changes>,
}

/// Which sandboxes somebody watches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Scope {
    /// This one.
    One(SandboxId),
    /// All of a tenant.
    Tenant(Tenant),
}

/// A place among the watchers, given back when it is dropped.
pub(super) struct Subscription {
    changes: Changes,
    watcher: Arc<Watcher>,
}

struct Watcher {
    scope: Scope,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// What the watcher has not come for, in the order in which it changed.
    queue: BTreeMap<u64, SandboxId>,
    /// What it was told of, or is to be told of.
    known: HashMap<SandboxId, Known>,
    next: u64,
    waker: Option<Waker>,
}

#[derive(Default)]
struct Known {
    /// Its place in the queue.
    queued: Option<u64>,
    /// Whether the watcher has heard of it.
    told: bool,
}

/// What a watcher is to be told of next.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Changed {
    pub(super) id: SandboxId,
    /// The number of the change; a later one is larger.
    pub(super) number: u64,
    /// Whether the watcher has heard of it before.
    pub(super) told: bool,
}

impl Changes {
    /// Notes that something in a sandbox has changed, or that it is new.
    pub(super) fn changed(&self, sandbox: &Identity) {
        self.each(sandbox, |inner| inner.push(&sandbox.id));
    }

    /// Notes that a sandbox is gone. Whoever never heard of it never will.
    pub(super) fn gone(&self, sandbox: &Identity) {
        self.each(sandbox, |inner| {
            if inner.known.get(&sandbox.id).is_some_and(|known| known.told) {
                inner.push(&sandbox.id);
            } else {
                inner.forget(&sandbox.id);
            }
        });
    }

    /// Takes a place among the watchers.
    pub(super) fn subscribe(&self, scope: Scope) -> Result<Subscription> {
        let mut inner = Inner::default();
        // Who asked for this one knows that it is there, and is to be told when it goes.
        if let Scope::One(id) = &scope {
            inner.known.entry(id.clone()).or_default().told = true;
        }
        let inner = Mutex::new(inner);
        let watcher = Arc::new(Watcher { scope, inner });
        let mut watchers = self.watchers();
        if watchers.len() >= WATCHERS_MAX {
            return Err(Error::new(
                ErrorKind::ResourceExhausted,
                "TOO_MANY_WATCHERS",
                format!("{WATCHERS_MAX} callers watch already"),
            )
            .hint("end one of them, or use `lodge ls` (List in the API)"));
        }
        watchers.push(Arc::clone(&watcher));
        self.0.count.store(watchers.len(), Ordering::SeqCst);
        drop(watchers);
        Ok(Subscription {
            changes: self.clone(),
            watcher,
        })
    }

    fn each(&self, sandbox: &Identity, note: impl Fn(&mut Inner)) {
        // Sequentially consistent with the store above: a watcher that this misses reads the state after the change.
        if self.0.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        for watcher in self.watchers().iter() {
            let is_meant = match &watcher.scope {
                Scope::One(id) => *id == sandbox.id,
                Scope::Tenant(tenant) => *tenant == sandbox.tenant,
            };
            if is_meant {
                watcher.note(&note);
            }
        }
    }

    fn watchers(&self) -> MutexGuard<'_, Vec<Arc<Watcher>>> {
        // Each change is one push or one removal.
        let locked = self.0.watchers.lock();
        locked.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Teller {
    pub(super) fn new(sandbox: Identity) -> Self {
        Self {
            sandbox,
            changes: OnceLock::new(),
        }
    }

    /// From here on it tells `changes`; the first one stays.
    pub(super) fn connect(&self, changes: &Changes) {
        self.changes.get_or_init(|| changes.clone());
    }

    /// Something in the sandbox has changed.
    pub(crate) fn tell(&self) {
        if let Some(changes) = self.changes.get() {
            changes.changed(&self.sandbox);
        }
    }
}

impl Watcher {
    fn note(&self, note: impl FnOnce(&mut Inner)) {
        let waker = {
            let mut inner = self.lock();
            note(&mut inner);
            inner.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A change that was cut short tells a sandbox once too often at worst.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subscription {
    /// Notes sandboxes that there are already. Returns the number that is larger than those of all of them.
    pub(super) fn begin_with<'a>(&self, all: impl Iterator<Item = &'a SandboxId>) -> u64 {
        let mut inner = self.watcher.lock();
        all.for_each(|id| inner.push(id));
        inner.next
    }

    /// The next sandbox to be told of; the one that waits longest. It counts as told from here on. Whoever takes it looks
    /// it up after that: what changes then is noted anew.
    pub(super) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Changed> {
        let mut inner = self.watcher.lock();
        let Some((number, id)) = inner.queue.pop_first() else {
            inner.waker = Some(cx.waker().clone());
            return Poll::Pending;
        };
        let known = inner.known.entry(id.clone()).or_default();
        known.queued = None;
        let told = std::mem::replace(&mut known.told, true);
        Poll::Ready(Changed { id, number, told })
    }

    /// The number of the change that is told next; `None` if there is none.
    pub(super) fn next_number(&self) -> Option<u64> {
        let inner = self.watcher.lock();
        inner.queue.keys().next().copied()
    }

    /// Notes that the watcher knows nothing of it, or no longer cares.
    pub(super) fn forget(&self, id: &SandboxId) {
        let mut inner = self.watcher.lock();
        // It may have changed again meanwhile; then it is looked at again.
        match inner.known.get_mut(id) {
            Some(known) if known.queued.is_some() => known.told = false,
            _ => inner.forget(id),
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut watchers = self.changes.watchers();
        watchers.retain(|watcher| !Arc::ptr_eq(watcher, &self.watcher));
        self.changes.0.count.store(watchers.len(), Ordering::SeqCst);
    }
}

impl Inner {
    /// Puts it at the end of the queue, unless it waits there already.
    fn push(&mut self, id: &SandboxId) {
        let known = self.known.entry(id.clone()).or_default();
        if known.queued.is_none() {
            known.queued = Some(self.next);
            self.queue.insert(self.next, id.clone());
            self.next += 1;
        }
    }

    fn forget(&mut self, id: &SandboxId) {
        let queued = self.known.remove(id).and_then(|known| known.queued);
        if let Some(number) = queued {
            self.queue.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::id::SandboxName;
    use super::*;

    fn sandbox() -> Identity {
        Identity {
            id: SandboxId::random(),
            tenant: Tenant::default(),
            name: SandboxName::parse("agent").expect("valid"),
        }
    }

    fn subscribe(changes: &Changes) -> Subscription {
        let subscribed = changes.subscribe(Scope::Tenant(Tenant::default()));
        subscribed.expect("there is a place")
    }

    fn next(subscription: &Subscription) -> Option<SandboxId> {
        let mut cx = Context::from_waker(Waker::noop());
        match subscription.poll_next(&mut cx) {
            Poll::Ready(changed) => Some(changed.id),
            Poll::Pending => None,
        }
    }

    /// However much happens, also where sandboxes come and go.
    #[test]
    fn a_watcher_that_never_reads_costs_one_id_per_sandbox() {
        let changes = Changes::default();
        let subscription = subscribe(&changes);
        let staying: Vec<_> = (0..10).map(|_| sandbox()).collect();
        for _ in 0..1_000 {
            staying.iter().for_each(|sandbox| changes.changed(sandbox));
            let passing = sandbox();
            changes.changed(&passing);
            changes.gone(&passing);
        }
        let inner = subscription.watcher.lock();
        assert_eq!((inner.queue.len(), inner.known.len()), (10, 10));
    }

    #[test]
    fn a_sandbox_that_always_changes_keeps_no_other_from_being_told() {
        let changes = Changes::default();
        let subscription = subscribe(&changes);
        let (busy, quiet) = (sandbox(), sandbox());
        changes.changed(&busy);
        changes.changed(&quiet);
        assert_eq!(next(&subscription).as_ref(), Some(&busy.id));
        changes.changed(&busy);
        assert_eq!(next(&subscription).as_ref(), Some(&quiet.id));
        assert_eq!(next(&subscription).as_ref(), Some(&busy.id));
        assert_eq!(next(&subscription), None);
    }

    #[test]
    fn what_went_is_told_to_who_knew_of_it() {
        let changes = Changes::default();
        let (knows, knows_not) = (subscribe(&changes), subscribe(&changes));
        let sandbox = sandbox();
        changes.changed(&sandbox);
        assert_eq!(next(&knows).as_ref(), Some(&sandbox.id));
        changes.gone(&sandbox);
        assert_eq!(next(&knows).as_ref(), Some(&sandbox.id));
        assert_eq!(next(&knows_not), None);
    }

    #[test]
    fn a_sandbox_of_another_tenant_is_not_told() {
        let changes = Changes::default();
        let subscription = subscribe(&changes);
        let tenant = Tenant::parse("other").expect("valid");
        changes.changed(&Identity {
            tenant,
            ..sandbox()
        });
        assert_eq!(next(&subscription), None);
    }

    #[test]
    fn there_are_places_for_so_many_watchers_and_each_is_given_back() {
        let changes = Changes::default();
        let mut places: Vec<_> = (0..WATCHERS_MAX).map(|_| subscribe(&changes)).collect();
        let refused = changes.subscribe(Scope::One(SandboxId::random()));
        let error = refused.err().expect("there is no place");
        assert_eq!(error.reason(), "TOO_MANY_WATCHERS");
        places.pop();
        subscribe(&changes);
    }
}
