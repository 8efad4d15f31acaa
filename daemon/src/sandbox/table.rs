//! Which sandboxes there are, by id and by name. Get-or-insert is one step under one lock: that is what makes `Acquire`
//! race-free.
//!
//! No two sandboxes are made with one name. Should two be found at a start (a record was unreadable for a while, a directory
//! was brought back from a copy), the name means the oldest, whatever was found first; the others are reached by their ids,
//! and have the name once those before them are gone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::changes::Changes;
use super::handle::Handle;
use super::id::{SandboxId, SandboxName, Tenant};
use super::live::Live;
use crate::error::Result;

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
    /// Whose name it is, and who comes after. No set is empty.
    by_name: BTreeMap<(Tenant, SandboxName), BTreeSet<Claim>>,
}

/// A sandbox's claim to its name: the oldest comes first, and of two of one age the one of the lesser id.
type Claim = (u64, SandboxId);

fn key<L>(handle: &Handle<L>) -> (Tenant, SandboxName) {
    let identity = handle.identity();
    (identity.tenant.clone(), identity.name.clone())
}

fn claim<L>(handle: &Handle<L>) -> Claim {
    (handle.created_at_ms(), handle.id().clone())
}

impl<L> Inner<L> {
    fn by_name(&self, key: &(Tenant, SandboxName)) -> Option<Handle<L>> {
        let (_, id) = self.by_name.get(key)?.first()?;
        self.by_id.get(id).cloned()
    }

    /// Adds a sandbox. Says how many have its name.
    fn insert(&mut self, handle: &Handle<L>) -> usize {
        self.by_id.insert(handle.id().clone(), handle.clone());
        let claims = self.by_name.entry(key(handle)).or_default();
        claims.insert(claim(handle));
        claims.len()
    }

    fn remove(&mut self, handle: &Handle<L>) {
        self.by_id.remove(handle.id());
        let key = key(handle);
        if let Some(claims) = self.by_name.get_mut(&key) {
            claims.remove(&claim(handle));
            if claims.is_empty() {
                self.by_name.remove(&key);
            }
        }
    }
}

/// What a get-or-insert found.
pub(super) enum Found<L, T> {
    /// It was there.
    Old(Handle<L>),
    /// It was made, with this by-product.
    New(Handle<L>, T),
}

impl<L> Table<L> {
    /// The sandbox of this name, or the one that `make` gives, unless it refuses. `make` runs under the lock: it must not wait.
    pub(super) fn get_or_insert<T>(
        &self,
        tenant: &Tenant,
        name: &SandboxName,
        make: impl FnOnce() -> Result<(Handle<L>, T)>,
    ) -> Result<Found<L, T>> {
        let mut inner = self.lock();
        if let Some(handle) = inner.by_name(&(tenant.clone(), name.clone())) {
            return Ok(Found::Old(handle));
        }
        let (handle, by_product) = make()?;
        inner.insert(&handle);
        drop(inner);
        self.has_come(&handle);
        Ok(Found::New(handle, by_product))
    }

    /// Adds a sandbox that was found at the start.
    pub(super) fn insert(&self, handle: &Handle<L>) {
        let namesakes = self.lock().insert(handle);
        if namesakes > 1 {
            tracing::warn!(
                sandbox = %handle.id(), name = %handle.identity().name, namesakes,
                "several sandboxes have one name: it means the oldest; the others are reached by id"
            );
        }
        self.has_come(handle);
    }

    /// Takes a sandbox out. Its name is free again, or that of the next one that has it.
    pub(super) fn remove(&self, handle: &Handle<L>) {
        self.lock().remove(handle);
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
        self.lock().by_name(&(tenant.clone(), name.clone()))
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
        handle_of_age(name, 0)
    }

    fn handle_of_age(name: &SandboxName, created_at_ms: u64) -> Handle {
        let identity = Identity {
            id: SandboxId::random(),
            tenant: Tenant::default(),
            name: name.clone(),
        };
        let status = Status::new(State::Creating, Vec::new());
        Handle::new(identity, created_at_ms, status).0
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
                match table.get_or_insert(&Tenant::default(), &name, || Ok((handle(&name), ()))) {
                    Ok(Found::Old(handle)) => (handle.id().clone(), false),
                    Ok(Found::New(handle, ())) => (handle.id().clone(), true),
                    Err(error) => panic!("{error}"),
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

    /// In whatever order they were found, and whichever of them goes.
    #[test]
    fn a_name_of_several_means_the_oldest_that_is_left() {
        let name = name("agent");
        let [old, middle, young] = [1, 2, 3].map(|age| handle_of_age(&name, age));
        for found in [[&old, &middle, &young], [&young, &old, &middle]] {
            let table = Table::default();
            let meant = || {
                let handle = table.by_name(&Tenant::default(), &name);
                handle.map(|handle| handle.id().clone())
            };
            for handle in found {
                table.insert(handle);
            }
            assert_eq!(meant().as_ref(), Some(old.id()));
            table.remove(&middle);
            assert_eq!(meant().as_ref(), Some(old.id()));
            table.remove(&old);
            assert_eq!(meant().as_ref(), Some(young.id()));
            let again = table.get_or_insert(&Tenant::default(), &name, || Ok((handle(&name), ())));
            assert!(matches!(again, Ok(Found::Old(handle)) if handle.id() == young.id()));
            table.remove(&young);
            assert_eq!(meant(), None);
        }
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
