//! All sandboxes of this daemon: finding one, and get-or-create.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::actor::{Actor, IS_BEING_DELETED};
use super::handle::{Handle, Identity, SANDBOX_NOT_FOUND, Status, View};
use super::id::{SandboxId, SandboxName, Tenant};
use super::limits::{self, LimitStatus, RequestedLimits, Shortfall};
use super::platform::Platform;
use super::recover;
use super::spec::{self, Spec};
use super::state::State;
use super::table::{Found, Table};
use crate::error::{Error, ErrorKind, Result};
use crate::image::{Digest, ImageRef, Pin};

/// How often `acquire` starts again because the sandbox that it found went away meanwhile.
const ACQUIRE_ATTEMPTS: usize = 16;

/// All sandboxes. Cheap to clone.
#[derive(Clone)]
pub struct Registry {
    platform: Arc<Platform>,
    table: Table,
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
struct Obtained {
    handle: Handle,
    created: bool,
}

impl Obtained {
    fn found(handle: Handle) -> Self {
        Self {
            handle,
            created: false,
        }
    }
}

impl Registry {
    /// Takes up what an earlier daemon left, and then serves.
    pub async fn open(platform: Platform) -> Result<Self> {
        let registry = Self {
            platform: Arc::new(platform),
            table: Table::default(),
        };
        recover::recover(&registry).await?;
        Ok(registry)
    }

    /// Gets the sandbox of this name or creates it, and starts it. Of any number of parallel calls exactly one creates.
    pub async fn acquire(&self, tenant: &Tenant, request: &Acquire) -> Result<Acquired> {
        spec::check_env(&request.env)?;
        spec::check_labels(&request.labels)?;
        request.limits.resolve(&self.platform.default_limits)?;
        for _ in 0..ACQUIRE_ATTEMPTS {
            let Obtained { handle, created } = self.get_or_create(tenant, request).await?;
            match handle.live().await {
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
            "SANDBOX_CONTENDED",
            format!(
                "sandbox {} is deleted and created by others all the time",
                request.name
            ),
        ))
    }

    /// The tenant's sandbox of this name or id.
    pub fn get(&self, tenant: &Tenant, sandbox: &SandboxRef) -> Result<Handle> {
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

    /// The tenant's sandboxes after `after`, in the order of name and id, at most `limit`.
    pub fn list(&self, tenant: &Tenant, after: Option<&Identity>, limit: usize) -> Vec<Handle> {
        let key = |identity: &Identity| (identity.name.clone(), identity.id.clone());
        let after = after.map(key);
        let mut found: Vec<_> = self
            .table
            .all()
            .into_iter()
            .filter(|handle| handle.identity().tenant == *tenant)
            .map(|handle| (key(handle.identity()), handle))
            .filter(|(key, _)| after.as_ref().is_none_or(|after| key > after))
            .collect();
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        found.truncate(limit);
        found.into_iter().map(|(_, handle)| handle).collect()
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

    /// What sandboxes use of the host.
    pub fn platform(&self) -> &Arc<Platform> {
        &self.platform
    }

    async fn get_or_create(&self, tenant: &Tenant, request: &Acquire) -> Result<Obtained> {
        if let Some(handle) = self.table.by_name(tenant, &request.name) {
            self.check_image(&handle, request).await?;
            return Ok(Obtained::found(handle));
        }
        // Pinned until the table says that a sandbox uses it.
        let (spec, expected, _pin) = self.spec(tenant, request).await?;
        match self
            .table
            .get_or_insert(tenant, &request.name, || creating(&spec, expected))
        {
            Found::Old(handle) => {
                self.check_image(&handle, request).await?;
                Ok(Obtained::found(handle))
            }
            Found::New(handle, requests) => {
                let actor = Actor {
                    platform: Arc::clone(&self.platform),
                    table: self.table.clone(),
                    handle: handle.clone(),
                    requests,
                    record: None,
                    uid_base: None,
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
    ) -> Result<(Spec, Vec<LimitStatus>, Pin)> {
        let asked = match &request.image {
            Some(image) => image.clone(),
            None => ImageRef::parse(&self.platform.default_image)?,
        };
        let (digest, pin) = self.resolve(&asked).await?;
        let limits = request.limits.resolve(&self.platform.default_limits)?;
        let expected = self.platform.expected(&limits);
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
        };
        Ok((spec, statuses, pin))
    }

    /// A sandbox keeps the image that it was made from; asking for another one is a mistake.
    async fn check_image(&self, handle: &Handle, request: &Acquire) -> Result<()> {
        let (Some(asked), Some(spec)) = (&request.image, handle.spec()) else {
            return Ok(());
        };
        if asked.to_string() == spec.image || asked.to_string() == spec.image_digest {
            return Ok(());
        }
        let (digest, _pin) = self.resolve(asked).await?;
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

    async fn resolve(&self, image: &ImageRef) -> Result<(Digest, Pin)> {
        let (platform, image) = (Arc::clone(&self.platform), image.clone());
        let resolved = tokio::task::spawn_blocking(move || platform.images.resolve_pinned(&image));
        match resolved.await {
            Ok(found) => Ok(found.map(|(image, pin)| (image.digest, pin))?),
            Err(error) => Err(Error::internal("INTERNAL", "image look-up failed", error)),
        }
    }

    pub(super) fn table(&self) -> &Table {
        &self.table
    }
}

/// Whether the sandbox that was found is no longer there, or soon will not be.
fn went_away(error: &Error) -> bool {
    matches!(error.reason(), IS_BEING_DELETED | SANDBOX_NOT_FOUND)
}

fn creating(
    spec: &Spec,
    limits: Vec<LimitStatus>,
) -> (Handle, tokio::sync::mpsc::Receiver<super::actor::Request>) {
    let identity = Identity {
        id: SandboxId::random(),
        tenant: spec.tenant.clone(),
        name: spec.name.clone(),
    };
    let status = Status {
        state: State::Creating,
        reason: String::new(),
        limits,
        live: None,
    };
    Handle::new(identity, Some(spec.clone()), now_ms(), status)
}

/// Milliseconds since 1970, UTC.
fn now_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
