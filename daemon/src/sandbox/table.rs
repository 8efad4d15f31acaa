//! Which sandboxes there are, by id and by name. Get-or-insert is one step under one lock: that is what makes `Acquire`
//! race-free.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::changes::Changes;
use super::handle::Handle;
use super::id::{SandboxId, SandboxName, Tenant};
use super::live::Live;

/// All sandboxes. Cheap to clone.
pub(super) struct Table<L = Live> {
    inner: Arc<Mutex<Inner<L>>>,
    /// Who is told of what comes, changes and goes.
    changes: Changes,
}

impl<L> Clone for Table<L> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            changes: self.changes.clone(),
        }
    }
}

impl<L> Default for Table<L> {
    fn default() -> Self {
        let (by_id, by_name) = Default::default();
        Self {
            inner: Arc::new(Mutex::new(Inner { by_id, by_name })),
            changes: Changes::default(),
        }
    }
}

struct Inner<L> {
    by_id: HashMap<SandboxId, Handle<L>>,
    by_name: BTreeMap<(Tenant, SandboxName), SandboxId>,
}

/// What a get-or-insert found.
pub(super) enum Found<L, T> {
    /// It was there.
    Old(Handle<L>),
    /// It was made, with this by-product.
    New(Handle<L>, T),
}

impl<L> Table<L> {
    /// The sandbox of this name, or the one that `make` gives. `make` runs under the lock: it must not wait.
    pub(super) fn get_or_insert<T>(
        &self,
        tenant: &Tenant,
        name: &SandboxName,
        make: impl FnOnce() -> (Handle<L>, T),
    ) -> Found<L, T> {
        let mut inner = self.lock();
        let key = (tenant.clone(), name.clone());
        if let Some(handle) = inner.by_name.get(&key).and_then(|id| inner.by_id.get(id)) {
            return Found::Old(handle.clone());
        }
        let (handle, by_product) = make();
        inner.by_name.insert(key, handle.id().clone());
        inner.by_id.insert(handle.id().clone(), handle.clone());
        drop(inner);
        self.has_come(&handle);
        Found::New(handle, by_product)
    }

    /// Adds a sandbox that was found at the start. A name that another one has stays with that one.
    pub(super) fn insert(&self, handle: &Handle<L>) {
        let mut inner = self.lock();
        let (id, identity) = (handle.id().clone(), handle.identity());
        let key = (identity.tenant.clone(), identity.name.clone());
        inner.by_name.entry(key).or_insert_with(|| id.clone());
        inner.by_id.insert(id, handle.clone());
        drop(inner);
        self.has_come(handle);
    }

    /// Takes a sandbox out; its name is free again.
    pub(super) fn remove(&self, handle: &Handle<L>) {
        let mut inner = self.lock();
        inner.by_id.remove(handle.id());
        let key = (
            handle.identity().tenant.clone(),
            handle.identity().name.clone(),
        );
        if inner.by_name.get(&key) == Some(handle.id()) {
            inner.by_name.remove(&key);
        }
        drop(inner);
        self.changes.gone(handle.identity());
    }

    /// Who is told of what comes, changes and goes.
    pub(super) fn changes(&self) -> &Changes {
        &self.changes
    }

    fn has_come(&self, handle: &Handle<L>) {
        handle.tell_changes_to(&self.changes);
        self.changes.changed(handle.identity());
    }

    /// The sandbox of this name.
    pub(super) fn by_name(&self, tenant: &Tenant, name: &SandboxName) -> Option<Handle<L>> {
        let inner = self.lock();
        let id = inner.by_name.get(&(tenant.clone(), name.clone()))?;
        inner.by_id.get(id).cloned()
    }

    /// The sandbox of this id, if it is the tenant's.
    pub(super) fn by_id(&self, tenant: &Tenant, id: &SandboxId) -> Option<Handle<L>> {
        let handle = self.lock().by_id.get(id).cloned()?;
        (handle.identity().tenant == *tenant).then_some(handle)
    }

    /// All sandboxes, in no particular order.
    pub(super) fn all(&self) -> Vec<Handle<L>> {
        self.lock().by_id.values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner<L>> {
        // Each change is a few inserts into maps; a thread that died between two left a name without a sandbox at worst,
        // which the look-ups above take for free.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::handle::{Identity, Status};
    use super::super::state::State;
    use super::*;

    fn handle(name: &SandboxName) -> Handle {
        let identity = Identity {
            id: SandboxId::random(),
            tenant: Tenant::default(),
            name: name.clone(),
        };
        Handle::new(identity, 0, Status::new(State::Creating, Vec::new())).0
    }

    fn name(text: &str) -> SandboxName {
        SandboxName::parse(text).expect("valid")
    }

    /// CASES K1, at the place where the race is decided.
    #[test]
    fn fifty_parallel_gets_or_inserts_make_one() {
        let (table, name) = (Table::default(), name("agent"));
        let barrier = std::sync::Barrier::new(50);
        let made: Vec<(SandboxId, bool)> = std::thread::scope(|scope| {
            let call = || {
                barrier.wait();
                match table.get_or_insert(&Tenant::default(), &name, || (handle(&name), ())) {
                    Found::Old(handle) => (handle.id().clone(), false),
                    Found::New(handle, ()) => (handle.id().clone(), true),
                }
            };
            let threads: Vec<_> = (0..50).map(|_| scope.spawn(call)).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .collect()
        });
        assert_eq!(made.iter().filter(|(_, created)| *created).count(), 1);
        assert!(made.iter().all(|(id, _)| *id == made[0].0));
    }

    #[test]
    fn removing_one_does_not_free_a_name_that_another_has() {
        let (table, name) = (Table::default(), name("agent"));
        let (first, second) = (handle(&name), handle(&name));
        table.insert(&first);
        table.insert(&second);
        table.remove(&second);
        let tenant = Tenant::default();
        assert_eq!(
            table.by_name(&tenant, &name).map(|h| h.id().clone()),
            Some(first.id().clone())
        );
        table.remove(&first);
        assert!(table.by_name(&tenant, &name).is_none());
    }

    #[test]
    fn a_sandbox_of_another_tenant_is_not_found() {
        let (table, name) = (Table::default(), name("agent"));
        let handle = handle(&name);
        table.insert(&handle);
        let other = Tenant::parse("other").expect("valid");
        assert!(table.by_id(&other, handle.id()).is_none());
        assert!(table.by_name(&other, &name).is_none());
        assert!(table.by_id(&Tenant::default(), handle.id()).is_some());
    }
}
