//! Get-or-create, and what a new sandbox is made of.

use std::collections::BTreeMap;
use std::future::{Future, IntoFuture};
use std::pin::Pin;

use lodge_proto::v1 as pb;

use crate::client::Client;
use crate::error::Result;
use crate::idle::{IdlePolicy, ResumeMode};
use crate::info::SandboxInfo;
use crate::limits::Limits;
use crate::sandbox::{Sandbox, SandboxRef};
use crate::wire::{CALL_DEADLINE, answer, present};

/// Gets a sandbox or creates it. Await it for the [`Sandbox`], or call [`Acquire::acquire`] to learn more.
#[derive(Debug, Clone)]
#[must_use = "nothing happens until it is awaited"]
pub struct Acquire {
    client: Client,
    name: String,
    image: String,
    env: BTreeMap<String, String>,
    labels: BTreeMap<String, String>,
    limits: Limits,
    allow_degraded: bool,
    idle: IdlePolicy,
    resume: ResumeMode,
    no_new_privileges: Option<bool>,
    read_only_root: Option<bool>,
}

/// A sandbox that was got or created.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Acquired {
    /// Its handle.
    pub sandbox: Sandbox,
    /// What the daemon says of it.
    pub info: SandboxInfo,
    /// Whether this very call created it.
    pub created: bool,
}

impl Acquire {
    pub(crate) fn new(client: Client, name: String) -> Self {
        Self {
            client,
            name,
            image: String::new(),
            env: BTreeMap::new(),
            labels: BTreeMap::new(),
            limits: Limits::default(),
            allow_degraded: false,
            idle: IdlePolicy::default(),
            resume: ResumeMode::default(),
            no_new_privileges: None,
            read_only_root: None,
        }
    }

    /// Image name or digest; without it the server's default image. Refused if the sandbox exists with another one.
    pub fn image(mut self, image: impl Into<String>) -> Self {
        self.image = image.into();
        self
    }

    /// A variable that every run gets, if this call creates the sandbox. Never a secret: it is stored and listed.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// A label, if this call creates the sandbox.
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(name.into(), value.into());
        self
    }

    /// Limits, if this call creates the sandbox.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Takes a limit that the host cannot enforce as `degraded`, instead of having the call refused.
    pub fn allow_degraded(mut self) -> Self {
        self.allow_degraded = true;
        self
    }

    /// When to freeze, stop and delete it for want of use, if this call creates the sandbox.
    pub fn idle(mut self, policy: IdlePolicy) -> Self {
        self.idle = policy;
        self
    }

    /// What to do if it exists and is frozen. By default it is thawed.
    pub fn resume(mut self, mode: ResumeMode) -> Self {
        self.resume = mode;
        self
    }

    /// Whether set-user-id programs gain nothing inside, so that sudo does not work. Refused if the sandbox exists and is otherwise.
    pub fn no_new_privileges(mut self, on: bool) -> Self {
        self.no_new_privileges = Some(on);
        self
    }

    /// Whether its files cannot be changed from inside, but for /tmp and /dev/shm, which are memory then. Refused if the sandbox exists
    /// and is otherwise.
    pub fn read_only_root(mut self, on: bool) -> Self {
        self.read_only_root = Some(on);
        self
    }

    /// Gets or creates it, and tells which of the two it was.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a bad name, limit or idle policy, NOT_FOUND if there is no such image,
    /// FAILED_PRECONDITION if the sandbox exists with another image or other options, or is frozen and was not to be thawed.
    pub async fn acquire(self) -> Result<Acquired> {
        let mut service = self.client.sandboxes();
        let request = pb::AcquireRequest {
            name: self.name,
            image: self.image,
            env: self.env.into_iter().collect(),
            labels: self.labels.into_iter().collect(),
            limits: Some(self.limits.into_wire()),
            allow_degraded: self.allow_degraded,
            idle: self.idle.into_wire()?,
            resume: self.resume.to_wire(),
            no_new_privileges: self.no_new_privileges,
            read_only_root: self.read_only_root,
        };
        let acquired = answer(Some(CALL_DEADLINE), service.acquire(request)).await?;
        let sandbox = present(acquired.sandbox, "an acquired sandbox is missing")?;
        let info = SandboxInfo::from_wire(sandbox)?;
        let sandbox = Sandbox::new(self.client, SandboxRef::Id(info.id.clone()));
        Ok(Acquired {
            sandbox,
            info,
            created: acquired.created,
        })
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Sandbox>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Sandbox>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async { Ok(self.acquire().await?.sandbox) })
    }
}
