//! A cheap handle on one sandbox. Reading it takes a lock for a moment; changing it is asked of the task that owns it.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::{mpsc, oneshot};

use super::actor::Request;
use super::id::{SandboxId, SandboxName, Tenant};
use super::limits::LimitStatus;
use super::live::Live;
use super::spec::Spec;
use super::state::State;
use crate::error::{Error, ErrorKind, Result};
use crate::exec::RunTable;

/// Requests that wait for a sandbox's task. More callers than this wait for a place, so that none is dropped.
const REQUESTS_MAX: usize = 64;

/// One sandbox. Cheap to clone.
#[derive(Clone)]
pub struct Handle(Arc<Shared>);

struct Shared {
    identity: Identity,
    spec: Option<Spec>,
    created_at_ms: u64,
    runs: RunTable,
    status: RwLock<Status>,
    requests: mpsc::Sender<Request>,
}

/// Which sandbox it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its id.
    pub id: SandboxId,
    /// Whose it is.
    pub tenant: Tenant,
    /// The caller's name for it; its id where the record that names it cannot be read.
    pub name: SandboxName,
}

/// What a sandbox is doing.
pub(super) struct Status {
    pub(super) state: State,
    /// Why it is damaged.
    pub(super) reason: String,
    pub(super) limits: Vec<LimitStatus>,
    /// There while it is running.
    pub(super) live: Option<Live>,
}

/// A sandbox as it is now, for a caller.
#[derive(Debug, Clone)]
pub struct View {
    /// Which one.
    pub identity: Identity,
    /// What it is doing.
    pub state: State,
    /// Why it is damaged; empty otherwise.
    pub reason: String,
    /// The name under which its image was asked for; empty if unknown.
    pub image: String,
    /// The digest of its image; empty if unknown.
    pub image_digest: String,
    /// When it was created: milliseconds since 1970, UTC; zero if unknown.
    pub created_at_ms: u64,
    /// The caller's labels.
    pub labels: BTreeMap<String, String>,
    /// Variables that every run gets.
    pub env: BTreeMap<String, String>,
    /// Every limit.
    pub limits: Vec<LimitStatus>,
    /// The hostname inside.
    pub hostname: String,
    /// Live runs now.
    pub live_runs: u32,
}

impl Handle {
    /// A handle and the end of its queue that its task reads.
    pub(super) fn new(
        identity: Identity,
        spec: Option<Spec>,
        created_at_ms: u64,
        status: Status,
    ) -> (Self, mpsc::Receiver<Request>) {
        let (requests, receiver) = mpsc::channel(REQUESTS_MAX);
        let runs = RunTable::default();
        let status = RwLock::new(status);
        let shared = Shared {
            identity,
            spec,
            created_at_ms,
            runs,
            status,
            requests,
        };
        (Self(Arc::new(shared)), receiver)
    }

    /// Which sandbox it is.
    pub fn identity(&self) -> &Identity {
        &self.0.identity
    }

    /// Its id.
    pub fn id(&self) -> &SandboxId {
        &self.0.identity.id
    }

    /// Its runs.
    pub fn runs(&self) -> &RunTable {
        &self.0.runs
    }

    /// What it is made from, unless its record cannot be read.
    pub fn spec(&self) -> Option<&Spec> {
        self.0.spec.as_ref()
    }

    /// What it is doing.
    pub fn state(&self) -> State {
        self.status().state
    }

    /// The started sandbox, if it is started. Never wakes it.
    pub fn live_now(&self) -> Option<Live> {
        self.status().live.clone()
    }

    /// The started sandbox. Starts it if it is stopped.
    pub async fn live(&self) -> Result<Live> {
        match self.live_now() {
            Some(live) => Ok(live),
            None => self.ask(Request::Start).await,
        }
    }

    /// Ends every process.
    pub async fn stop(&self) -> Result<()> {
        self.ask(Request::Stop).await
    }

    /// Ends every process and removes all files.
    pub async fn delete(&self) -> Result<()> {
        self.ask(Request::Delete).await
    }

    /// Resolves when nothing is left of it but files in the trash.
    pub async fn gone(&self) {
        self.0.requests.closed().await;
    }

    /// It as it is now.
    pub fn view(&self) -> View {
        let spec = self.spec();
        let status = self.status();
        View {
            identity: self.identity().clone(),
            state: status.state,
            reason: status.reason.clone(),
            image: spec.map(|spec| spec.image.clone()).unwrap_or_default(),
            image_digest: spec
                .map(|spec| spec.image_digest.clone())
                .unwrap_or_default(),
            created_at_ms: self.0.created_at_ms,
            labels: spec.map(|spec| spec.labels.clone()).unwrap_or_default(),
            env: spec.map(|spec| spec.env.clone()).unwrap_or_default(),
            limits: status.limits.clone(),
            hostname: self.identity().name.hostname(),
            live_runs: u32::try_from(self.0.runs.live()).unwrap_or(u32::MAX),
        }
    }

    /// For its task alone.
    pub(super) fn update(&self, change: impl FnOnce(&mut Status)) {
        change(&mut self.status_mut());
    }

    /// For its task alone: takes the started sandbox, so that nobody else gets it any more, and enters `state`.
    pub(super) fn take_live(&self, state: State) -> Option<Live> {
        let mut status = self.status_mut();
        status.state = state;
        status.live.take()
    }

    /// For its task alone: when it was created.
    pub(super) fn created_at_ms(&self) -> u64 {
        self.0.created_at_ms
    }

    async fn ask<T>(&self, request: fn(Reply<T>) -> Request) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let sent = self.0.requests.send(request(reply)).await;
        sent.map_err(|_| self.is_gone())?;
        answer.await.map_err(|_| self.is_gone())?
    }

    /// The error of a call that came too late.
    fn is_gone(&self) -> Error {
        Error::new(
            ErrorKind::NotFound,
            SANDBOX_NOT_FOUND,
            format!("sandbox {} is gone", self.identity().name),
        )
    }

    fn status(&self) -> RwLockReadGuard<'_, Status> {
        // Each change is whole before its guard drops; a panic elsewhere must not take the sandbox with it.
        self.0.status.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn status_mut(&self) -> RwLockWriteGuard<'_, Status> {
        self.0
            .status
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where an answer goes.
pub(super) type Reply<T> = oneshot::Sender<Result<T>>;

/// The reason code of calls to a sandbox that is not there.
pub(super) const SANDBOX_NOT_FOUND: &str = "SANDBOX_NOT_FOUND";
