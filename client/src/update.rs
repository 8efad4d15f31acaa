//! Changing a sandbox's limits, idle policy or labels.

use std::collections::BTreeMap;
use std::future::{Future, IntoFuture};
use std::pin::Pin;

use lodge_proto::v1 as pb;

use crate::client::Client;
use crate::error::Result;
use crate::idle::IdlePolicy;
use crate::info::SandboxInfo;
use crate::limits::Limits;
use crate::sandbox::SandboxRef;
use crate::wire::{CALL_DEADLINE, answer};

/// A change of a sandbox. Await it for the sandbox as it is then. Never wakes it. All of it changes, or nothing; what is
/// not mentioned stays as it is.
///
/// # Errors
/// NOT_FOUND if the sandbox does not exist; INVALID_ARGUMENT for a value that makes no sense; FAILED_PRECONDITION if
/// the host cannot hold a limit, or it cannot be changed in this sandbox.
#[derive(Debug, Clone)]
#[must_use = "nothing changes until it is awaited"]
pub struct Update {
    client: Client,
    sandbox: SandboxRef,
    limits: Option<Limits>,
    idle: IdlePolicy,
    set_labels: BTreeMap<String, String>,
    remove_labels: Vec<String>,
    allow_degraded: bool,
}

impl Update {
    pub(crate) fn new(client: Client, sandbox: SandboxRef) -> Self {
        Self {
            client,
            sandbox,
            limits: None,
            idle: IdlePolicy::default(),
            set_labels: BTreeMap::new(),
            remove_labels: Vec::new(),
            allow_degraded: false,
        }
    }

    /// Limits to change. Those of a started sandbox change at once where the kernel can, else at its next start.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = Some(limits);
        self
    }

    /// The times of the idle policy to change.
    pub fn idle(mut self, policy: IdlePolicy) -> Self {
        self.idle = policy;
        self
    }

    /// A label to set.
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.set_labels.insert(name.into(), value.into());
        self
    }

    /// A label to remove. One that is not there is no error.
    pub fn remove_label(mut self, name: impl Into<String>) -> Self {
        self.remove_labels.push(name.into());
        self
    }

    /// Takes a limit that the host cannot enforce as `degraded`, instead of having the call refused.
    pub fn allow_degraded(mut self) -> Self {
        self.allow_degraded = true;
        self
    }

    async fn send(self) -> Result<SandboxInfo> {
        let request = pb::UpdateSandboxRequest {
            sandbox: Some(self.sandbox.to_wire()),
            limits: self.limits.map(Limits::into_wire),
            idle: self.idle.into_wire()?,
            set_labels: self.set_labels.into_iter().collect(),
            remove_labels: self.remove_labels,
            allow_degraded: self.allow_degraded,
        };
        let mut service = self.client.sandboxes();
        let updated = answer(Some(CALL_DEADLINE), service.update(request)).await?;
        SandboxInfo::from_wire(updated)
    }
}

impl IntoFuture for Update {
    type Output = Result<SandboxInfo>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}
