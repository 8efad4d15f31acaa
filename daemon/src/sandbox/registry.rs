//! All sandboxes of this daemon: finding one, and get-or-create.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::mpsc;

use super::actor::idling::Watchman;
use super::actor::{Actor, IS_BEING_DELETED, Remedy, Request};
use super::confinement::Confine;
use super::filter::Filter;
use super::handle::{Handle, Identity, Resume, SANDBOX_CONTENDED, SANDBOX_NOT_FOUND, Status, View};
use super::host::Host;
use super::id::{SandboxId, SandboxName, Tenant};
use super::idle::IdleChange;
use super::limits::{self, LimitStatus, RequestedLimits, Shortfall};
use super::platform::Platform;
use super::quota::Promised;
use super::recover;
use super::report::Recovery;
use super::runtime::Runtime;
use super::spec::{self, Spec};
use super::state::State;
use super::table::{Found, Table};
use super::watch::{Watch, Watching};
use crate::error::{Error, ErrorKind, Result};
use crate::image::{Digest, ImageRef};

/// How often `acquire` starts again because the sandbox that it found went away meanwhile.
const ACQUIRE_ATTEMPTS: usize = 16;

/// All sandboxes. Cheap to clone.
pub struct Registry<R: Runtime = Host> {
    runtime: R,
    table: Table<R::Live>,
    recovery: Recovery,
}

impl<R: Runtime> Clone for Registry<R> {
    fn clone(&self) -> Self {
        Self {
            runtime: self.runtime.clone(),
            recovery: self.recovery,
            table: self.table.clone(),
        }
    }
}

/// Names one sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SandboxRef {
    /// By the caller's name.
    Name(SandboxName),
    /// By the daemon's id.
    Id(SandboxId),
}

/// What `acquire` is asked for. All but the name and the image count only if it creates.
#[derive(Debug, Clone)]
pub struct Acquire {
    /// The caller's name for it.
    pub name: SandboxName,
    /// Its image; `None` takes the default.
    pub image: Option<ImageRef>,
    /// Variables that every run gets.
    pub env: BTreeMap<String, String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Limits.
    pub limits: RequestedLimits,
    /// Whether limits that are not enforced are accepted.
    pub shortfall: Shortfall,
    /// What happens to it when nobody uses it.
    pub idle: IdleChange,
    /// How tightly it is held.
    pub confine: Confine,
    /// What it does to one that is frozen.
    pub resume: Resume,
}

/// What `acquire` gives.
#[derive(Debug, Clone)]
pub struct Acquired {
    /// The sandbox, started.
    pub sandbox: View,
    /// Whether this call created it.
    pub created: bool,
}

/// What get-or-create gives: a sandbox that may still have to be started.
struct Obtained<L> {
    handle: Handle<L>,
    created: bool,
}

impl<L> Obtained<L> {
    fn found(handle: Handle<L>) -> Self {
        Self {
            handle,
            created: false,
        }
    }
}

impl Registry {
    /// What sandboxes use of the host.
    pub fn platform(&self) -> &Arc<Platform> {
        self.runtime.platform()
    }
}

impl<R: Runtime> Registry<R> {
    /// Takes up what an earlier daemon left, and then serves.
    pub async fn open(runtime: R) -> Result<Self> {
        let mut registry = Self {
            runtime,
            table: Table::default(),
            recovery: Recovery::default(),
        };
        registry.recovery = recover::recover(&registry).await?;
        Ok(registry)
    }

    /// What became of what an earlier daemon left.
    pub fn recovery(&self) -> Recovery {
        self.recovery
    }

    /// Gets the sandbox of this name or creates it, and starts it. Of any number of parallel calls exactly one creates.
    pub async fn acquire(&self, tenant: &Tenant, request: &Acquire) -> Result<Acquired> {
        spec::check_env(&request.env)?;
        spec::check_labels(&request.labels)?;
        request.limits.resolve(&self.runtime.defaults().limits)?;
        for _ in 0..ACQUIRE_ATTEMPTS {
            let Obtained { handle, created } = self.get_or_create(tenant, request).await?;
            match handle.live(request.resume).await {
                Ok(_) => {
                    return Ok(Acquired {
                        sandbox: handle.view(),
                        created,
                    });
                }
                Err(error) if created || !went_away(&error) => return Err(error),
                // It was being deleted, or its create failed: its name is free when its task has ended.
                Err(_) => handle.gone().await,
            }
        }
        Err(Error::new(
            ErrorKind::Aborted,
            SANDBOX_CONTENDED,
            format!(
                "sandbox {} is deleted and created by others all the time",
                request.name
            ),
        )
        .hint("call again"))
    }

    /// The tenant's sandbox of this name or id.
    pub fn get(&self, tenant: &Tenant, sandbox: &SandboxRef) -> Result<Handle<R::Live>> {
        let found = match sandbox {
            SandboxRef::Name(name) => self.table.by_name(tenant, name),
            SandboxRef::Id(id) => self.table.by_id(tenant, id),
        };
        found.ok_or_else(|| {
            let which = match sandbox {
                SandboxRef::Name(name) => name.as_str(),
                SandboxRef::Id(id) => id.as_str(),
            };
            Error::new(
                ErrorKind::NotFound,
                SANDBOX_NOT_FOUND,
                format!("no sandbox {which}"),
            )
            .hint("`lodge create NAME` creates it; in the API, Acquire does")
        })
    }

    /// The tenant's sandboxes that `filter` means, after `after`, in the order of name and id, at most `limit`.
    pub fn list(
        &self,
        tenant: &Tenant,
        filter: &Filter,
        after: Option<&Identity>,
        limit: usize,
    ) -> Vec<Handle<R::Live>> {
        let key = |identity: &Identity| (identity.name.clone(), identity.id.clone());
        let after = after.map(key);
        let mut found: Vec<_> = self
            .table
            .all()
            .into_iter()
            .filter(|handle| handle.identity().tenant == *tenant && handle.is_meant_by(filter))
            .map(|handle| (key(handle.identity()), handle))
            .filter(|(key, _)| after.as_ref().is_none_or(|after| key > after))
            .collect();
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        found.truncate(limit);
        found.into_iter().map(|(_, handle)| handle).collect()
    }

    /// All of them, of all tenants.
    pub fn all(&self) -> Vec<Handle<R::Live>> {
        self.table.all()
    }

    /// Begins to watch sandboxes of a tenant.
    pub fn watch(&self, tenant: &Tenant, watching: Watching) -> Result<Watch<R::Live>> {
        let one = match &watching.sandbox {
            None => None,
            Some(sandbox) => Some(self.get(tenant, sandbox)?.id().clone()),
        };
        Watch::begin(&self.table, tenant, one.as_ref(), watching.labels)
    }

    /// Sandboxes, of all tenants, that are made from this image.
    pub fn uses(&self, image: &Digest) -> u32 {
        let digest = image.to_string();
        let users = self.table.all().into_iter().filter(|handle| {
            handle
                .spec()
                .is_some_and(|spec| spec.image_digest == digest)
        });
        u32::try_from(users.count()).unwrap_or(u32::MAX)
    }

    /// Sandboxes, of all tenants, whose records cannot be read: they may be made from any image.
    pub fn uses_unknown(&self) -> u32 {
        let unread = self.table.all().into_iter().filter(|h| h.spec().is_none());
        u32::try_from(unread.count()).unwrap_or(u32::MAX)
    }

    async fn get_or_create(&self, tenant: &Tenant, request: &Acquire) -> Result<Obtained<R::Live>> {
        if let Some(handle) = self.table.by_name(tenant, &request.name) {
            self.check_same(&handle, request).await?;
            return Ok(Obtained::found(handle));
        }
        // Pinned until the table says that a sandbox uses it.
        let (spec, expected, _pin) = self.spec(tenant, request).await?;
        let quotas = self.runtime.defaults().quotas;
        let make = || {
            let promised = Promised::to_new(&quotas, tenant, &spec.limits)?;
            let (handle, requests) = creating(&spec, expected);
            Ok((handle, (requests, promised)))
        };
        match self.table.get_or_insert(tenant, &request.name, make)? {
            Found::Old(handle) => {
                self.check_same(&handle, request).await?;
                Ok(Obtained::found(handle))
            }
            Found::New(handle, (requests, promised)) => {
                let actor = Actor {
                    runtime: self.runtime.clone(),
                    table: self.table.clone(),
                    handle: handle.clone(),
                    requests,
                    record: None,
                    uid_base: None,
                    watchman: Watchman::default(),
                    remedy: Remedy::default(),
                    promised,
                };
                tokio::spawn(actor.create(spec));
                Ok(Obtained {
                    handle,
                    created: true,
                })
            }
        }
    }

    async fn spec(
        &self,
        tenant: &Tenant,
        request: &Acquire,
    ) -> Result<(Spec, Vec<LimitStatus>, R::Pin)> {
        let defaults = self.runtime.defaults();
        let asked = match &request.image {
            Some(image) => image.clone(),
            None => ImageRef::parse(&defaults.image)?,
        };
        let (digest, pin) = self.runtime.resolve_image(&asked).await?;
        let limits = request.limits.resolve(&defaults.limits)?;
        let expected = self.runtime.expected(&limits);
        let statuses = limits::statuses(&request.limits, &expected, request.shortfall)?;
        let spec = Spec {
            tenant: tenant.clone(),
            name: request.name.clone(),
            image: asked.to_string(),
            image_digest: digest.to_string(),
            env: request.env.clone(),
            labels: request.labels.clone(),
            requested: request.limits,
            limits,
            shortfall: request.shortfall,
            idle: request.idle.on(&defaults.idle),
            confinement: request.confine.resolve(),
        };
        Ok((spec, statuses, pin))
    }

    /// A sandbox keeps the image that it was made from, and how tightly it is held; asking for another is a mistake.
    async fn check_same(&self, handle: &Handle<R::Live>, request: &Acquire) -> Result<()> {
        let Some(spec) = handle.spec() else {
            return Ok(());
        };
        request.confine.check(&spec.name, spec.confinement)?;
        let Some(asked) = &request.image else {
            return Ok(());
        };
        if asked.to_string() == spec.image || asked.to_string() == spec.image_digest {
            return Ok(());
        }
        let (digest, _pin) = self.runtime.resolve_image(asked).await?;
        if digest.to_string() == spec.image_digest {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::FailedPrecondition,
            "IMAGE_MISMATCH",
            format!(
                "sandbox {} was made from image {}, not {asked}",
                spec.name, spec.image
            ),
        )
        .hint("take another name, or delete the sandbox first"))
    }

    pub(super) fn runtime(&self) -> &R {
        &self.runtime
    }

    pub(super) fn table(&self) -> &Table<R::Live> {
        &self.table
    }
}

/// Whether the sandbox that was found is no longer there, or soon will not be.
fn went_away(error: &Error) -> bool {
    matches!(error.reason(), IS_BEING_DELETED | SANDBOX_NOT_FOUND)
}

fn creating<L: Clone>(
    spec: &Spec,
    limits: Vec<LimitStatus>,
) -> (Handle<L>, mpsc::Receiver<Request<L>>) {
    let identity = Identity {
        id: SandboxId::random(),
        tenant: spec.tenant.clone(),
        name: spec.name.clone(),
    };
    let mut status = Status::new(State::Creating, limits);
    status.spec = Some(Arc::new(spec.clone()));
    Handle::new(identity, now_ms(), status)
}

/// Milliseconds since 1970, UTC.
fn now_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
