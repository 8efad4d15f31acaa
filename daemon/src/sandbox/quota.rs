//! What a tenant may have at once: a cap of each thing, and shares of it that go when what they are for goes.
//!
//! Limits are promises, not what is used: a tenant whose sandboxes may take 8 GiB together has 8 GiB of its cap taken, whatever they do.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::id::Tenant;
use super::limits::Limits;
use crate::error::{Error, ErrorKind, Result};

/// What is counted.
const KINDS: usize = 5;

/// Something that a tenant may have so much of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Sandboxes,
    DiskBytes,
    Running,
    MemoryBytes,
    Runs,
}

impl Kind {
    const ALL: [Self; KINDS] = [
        Self::Sandboxes,
        Self::DiskBytes,
        Self::Running,
        Self::MemoryBytes,
        Self::Runs,
    ];

    /// Reason code, what it is to a person, and what mends it.
    const fn words(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Sandboxes => (
                "TENANT_SANDBOXES",
                "sandboxes",
                "delete one (`lodge rm NAME`)",
            ),
            Self::DiskBytes => (
                "TENANT_DISK",
                "bytes of disk promised to its sandboxes",
                "ask for less disk_bytes, lower those of another (`lodge update`), or delete one",
            ),
            Self::Running => (
                "TENANT_RUNNING",
                "sandboxes that run or are frozen",
                "stop one (`lodge stop NAME`)",
            ),
            Self::MemoryBytes => (
                "TENANT_MEMORY",
                "bytes of memory promised to its running sandboxes",
                "ask for less memory_bytes, or stop one (`lodge stop NAME`)",
            ),
            Self::Runs => ("TENANT_RUNS", "live runs", "wait for some to end"),
        }
    }
}

/// How much of each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount([u64; KINDS]);

impl Amount {
    /// A sandbox with these limits, running or not.
    pub(super) fn of_sandbox(limits: &Limits) -> Self {
        let mut amount = Self::default();
        amount.0[Kind::Sandboxes as usize] = 1;
        amount.0[Kind::DiskBytes as usize] = limits.disk_bytes;
        amount
    }

    /// What it has beyond that while it has processes.
    pub(super) fn of_running(limits: &Limits) -> Self {
        let mut amount = Self::default();
        amount.0[Kind::Running as usize] = 1;
        amount.0[Kind::MemoryBytes as usize] = limits.memory_bytes;
        amount
    }

    /// A live run.
    pub(crate) fn of_run() -> Self {
        let mut amount = Self::default();
        amount.0[Kind::Runs as usize] = 1;
        amount
    }
}

/// Caps of every tenant. Zero means none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Caps {
    /// Sandboxes, whatever they do.
    pub sandboxes: u64,
    /// Sandboxes that have processes; a frozen one has.
    pub running: u64,
    /// Sum of the memory limits of those, in bytes.
    pub memory_bytes: u64,
    /// Sum of the disk limits of all, in bytes.
    pub disk_bytes: u64,
    /// Live runs.
    pub runs: u64,
}

impl Caps {
    fn of(&self, kind: Kind) -> Option<u64> {
        let cap = match kind {
            Kind::Sandboxes => self.sandboxes,
            Kind::DiskBytes => self.disk_bytes,
            Kind::Running => self.running,
            Kind::MemoryBytes => self.memory_bytes,
            Kind::Runs => self.runs,
        };
        (cap != 0).then_some(cap)
    }
}

/// What all tenants have. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Quotas(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    caps: Caps,
    held: Mutex<HashMap<Tenant, Amount>>,
}

impl Quotas {
    /// With these caps of each tenant.
    pub fn new(caps: Caps) -> Self {
        Self(Arc::new(Inner {
            caps,
            held: Mutex::default(),
        }))
    }

    /// Takes a share, or says which cap it is beyond, with the figures.
    pub(crate) fn take(&self, tenant: &Tenant, amount: Amount) -> Result<Share> {
        let mut share = self.empty(tenant);
        share.change(amount)?;
        Ok(share)
    }

    /// Takes a share of what is there already, whatever the caps have become.
    pub(crate) fn take_anyway(&self, tenant: &Tenant, amount: Amount) -> Share {
        let mut share = self.empty(tenant);
        share.set(&mut self.lock(), amount);
        share
    }

    fn empty(&self, tenant: &Tenant) -> Share {
        Share {
            quotas: self.clone(),
            tenant: tenant.clone(),
            amount: Amount::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Tenant, Amount>> {
        // Sums, each changed at once.
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one sandbox or run has of its tenant's. Given back when it is dropped.
#[derive(Debug)]
pub struct Share {
    quotas: Quotas,
    tenant: Tenant,
    amount: Amount,
}

impl Share {
    /// Makes it more or less. More than a cap is refused, and leaves it as it was; less is never refused.
    pub(super) fn change(&mut self, to: Amount) -> Result<()> {
        let quotas = self.quotas.clone();
        let mut held = quotas.lock();
        let all = held.get(&self.tenant).copied().unwrap_or_default();
        for kind in Kind::ALL {
            let (all, old, new) = (
                all.0[kind as usize],
                self.amount.0[kind as usize],
                to.0[kind as usize],
            );
            let others = all.saturating_sub(old);
            if let Some(cap) = quotas.0.caps.of(kind)
                && new > old
                && others.saturating_add(new) > cap
            {
                return Err(beyond(&self.tenant, kind, new, others, cap));
            }
        }
        self.set(&mut held, to);
        Ok(())
    }

    fn set(&mut self, held: &mut HashMap<Tenant, Amount>, to: Amount) {
        let all = held.entry(self.tenant.clone()).or_default();
        for ((all, old), new) in all.0.iter_mut().zip(self.amount.0).zip(to.0) {
            *all = all.saturating_sub(old).saturating_add(new);
        }
        if *all == Amount::default() {
            held.remove(&self.tenant);
        }
        self.amount = to;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let quotas = self.quotas.clone();
        self.set(&mut quotas.lock(), Amount::default());
    }
}

/// What a sandbox has of its tenant's, for as long as it is there and for as long as it has processes.
pub(super) struct Promised {
    quotas: Quotas,
    tenant: Tenant,
    owned: Option<Share>,
    running: Option<Share>,
}

impl Promised {
    /// Of a sandbox that is to be created.
    pub(super) fn to_new(quotas: &Quotas, tenant: &Tenant, limits: &Limits) -> Result<Self> {
        let owned = quotas.take(tenant, Amount::of_sandbox(limits))?;
        Ok(Self {
            quotas: quotas.clone(),
            tenant: tenant.clone(),
            owned: Some(owned),
            running: None,
        })
    }

    /// Of one that an earlier daemon left; without limits where its record cannot be read.
    pub(super) fn to_found(
        quotas: &Quotas,
        tenant: &Tenant,
        limits: Option<&Limits>,
        has_processes: bool,
    ) -> Self {
        let amount = |of: fn(&Limits) -> Amount| {
            let nothing = Limits {
                memory_bytes: 0,
                disk_bytes: 0,
                ..Limits::default()
            };
            quotas.take_anyway(tenant, of(limits.unwrap_or(&nothing)))
        };
        Self {
            quotas: quotas.clone(),
            tenant: tenant.clone(),
            owned: Some(amount(Amount::of_sandbox)),
            running: has_processes.then(|| amount(Amount::of_running)),
        }
    }

    /// For the time of a start. To be kept by [`started`](Self::started) if that succeeds.
    pub(super) fn starting(&self, limits: &Limits) -> Result<Share> {
        self.quotas.take(&self.tenant, Amount::of_running(limits))
    }

    /// It has processes.
    pub(super) fn started(&mut self, share: Share) {
        self.running = Some(share);
    }

    /// It has none any more.
    pub(super) fn ended(&mut self) {
        self.running = None;
    }

    /// It is deleted: who is told so may make another.
    pub(super) fn gone(&mut self) {
        (self.owned, self.running) = (None, None);
    }

    /// It gets other limits, or keeps those that it has.
    pub(super) fn change(&mut self, old: &Limits, new: &Limits) -> Result<()> {
        if let Some(owned) = &mut self.owned {
            owned.change(Amount::of_sandbox(new))?;
        }
        let changed = match &mut self.running {
            Some(running) => running.change(Amount::of_running(new)),
            None => Ok(()),
        };
        if changed.is_err() {
            self.change_back(old);
        }
        changed
    }

    /// It keeps the limits that it had, whatever others have got meanwhile.
    pub(super) fn change_back(&mut self, limits: &Limits) {
        let mut held = self.quotas.lock();
        if let Some(owned) = &mut self.owned {
            owned.set(&mut held, Amount::of_sandbox(limits));
        }
        if let Some(running) = &mut self.running {
            running.set(&mut held, Amount::of_running(limits));
        }
    }
}

fn beyond(tenant: &Tenant, kind: Kind, asked: u64, others: u64, cap: u64) -> Error {
    let (reason, what, mend) = kind.words();
    let text = format!(
        "tenant {tenant} has {others} {what}; {asked} more would be beyond its cap of {cap}"
    );
    Error::new(ErrorKind::ResourceExhausted, reason, text)
        .detail("asked", asked.to_string())
        .detail("held", others.to_string())
        .detail("max", cap.to_string())
        .hint(mend)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn quotas() -> Quotas {
        Quotas::new(Caps {
            sandboxes: 2,
            running: 1,
            memory_bytes: 100 * MIB,
            disk_bytes: 0,
            runs: 3,
        })
    }

    fn limits(memory_bytes: u64) -> Limits {
        Limits {
            memory_bytes,
            ..Limits::default()
        }
    }

    #[test]
    fn what_is_beyond_a_cap_is_refused_with_figures_and_fits_when_a_share_is_given_back() {
        let (quotas, tenant) = (quotas(), Tenant::default());
        let one = || quotas.take(&tenant, Amount::of_sandbox(&limits(0)));
        let (first, second) = (one().expect("the first"), one().expect("the second"));
        let refused = one().expect_err("a third");
        assert_eq!(refused.kind(), ErrorKind::ResourceExhausted);
        assert_eq!(refused.reason(), "TENANT_SANDBOXES");
        assert!(refused.to_string().contains("cap of 2"), "{refused}");
        drop(first);
        let third = one().expect("there is room again");
        drop((second, third));
        assert!(quotas.lock().is_empty(), "nothing is counted any more");
    }

    #[test]
    fn tenants_do_not_share_a_cap() {
        let quotas = quotas();
        let [a, b] = ["a", "b"].map(|name| Tenant::parse(name).expect("valid"));
        let running = Amount::of_running(&limits(MIB));
        let _a = quotas.take(&a, running).expect("a's own");
        let _b = quotas.take(&b, running).expect("b's own");
        let refused = quotas.take(&a, running).expect_err("a has its one");
        assert_eq!(refused.reason(), "TENANT_RUNNING");
    }

    #[test]
    fn a_share_is_changed_or_stays_as_it_was() {
        let (quotas, tenant) = (quotas(), Tenant::default());
        let of = |mib| Amount::of_running(&limits(mib * MIB));
        let mut share = quotas.take(&tenant, of(60)).expect("it fits");
        let refused = share.change(of(101)).expect_err("beyond the cap");
        assert_eq!(refused.reason(), "TENANT_MEMORY");
        assert_eq!(share.amount, of(60));
        share.change(of(100)).expect("up to the cap");
        share.change(of(1)).expect("less is never refused");
    }

    /// A cap that was lowered refuses more, and takes nothing away.
    #[test]
    fn what_is_there_counts_whatever_the_caps_are() {
        let (quotas, tenant) = (quotas(), Tenant::default());
        let mut found: Vec<Share> = (0..3)
            .map(|_| quotas.take_anyway(&tenant, Amount::of_running(&limits(MIB))))
            .collect();
        assert!(
            quotas
                .take(&tenant, Amount::of_running(&limits(0)))
                .is_err()
        );
        found.truncate(1);
        assert!(
            quotas
                .take(&tenant, Amount::of_running(&limits(0)))
                .is_err()
        );
        found.clear();
        assert!(quotas.take(&tenant, Amount::of_running(&limits(0))).is_ok());
    }
}
