//! A cheap handle on one sandbox. Reading it takes a lock for a moment; changing it is asked of the task that owns it.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, mpsc, oneshot};

use super::activity::{Activity, StreamUse, Use};
use super::actor::Request;
use super::changes::{Changes, Teller};
use super::confinement::Confinement;
use super::failure::panicked;
use super::filter::Filter;
use super::id::{SandboxId, SandboxName, Tenant};
use super::idle::IdlePolicy;
use super::limits::LimitStatus;
use super::live::Live;
use super::spec::Spec;
use super::state::State;
use super::update::Change;
use crate::error::{Error, ErrorKind, Result};
use crate::exec::RunTable;

/// Requests that wait for a sandbox's task. More callers than this wait for a place, so that none is dropped.
const REQUESTS_MAX: usize = 64;

/// How often a call that needs the sandbox wakes it again because others stop or pause it at once.
const ADMIT_ATTEMPTS: usize = 16;

/// One sandbox. Cheap to clone.
pub struct Handle<L = Live>(Arc<Shared<L>>);

impl<L> Clone for Handle<L> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

struct Shared<L> {
    identity: Identity,
    created_at_ms: u64,
    runs: RunTable,
    status: RwLock<Status<L>>,
    activity: Activity,
    /// Told of each change.
    teller: Arc<Teller>,
    /// Held shared while something is spawned, and alone while the sandbox is frozen or taken from the callers.
    gate: Arc<Gate>,
    requests: mpsc::Sender<Request<L>>,
}

/// What a call that needs a sandbox does to one that is frozen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Resume {
    /// Thaws it.
    #[default]
    Auto,
    /// Is refused.
    Error,
}

/// Leave to spawn in a running sandbox. While one is held, the sandbox is not frozen, nor stopped for want of use: hold it
/// from before a run's group is made until PID 1 was told, and no longer.
pub struct Admission<L = Live> {
    live: L,
    in_use: Use,
    _gate: OwnedRwLockReadGuard<()>,
}

impl<L> Admission<L> {
    /// The started sandbox.
    pub fn live(&self) -> &L {
        &self.live
    }

    /// Another use, for what outlives the admission: a run takes one and holds it until its command has ended.
    pub fn use_on(&self) -> Use {
        self.in_use.clone()
    }
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
pub(super) struct Status<L = Live> {
    pub(super) state: State,
    /// Why it is damaged, or was frozen or stopped unasked.
    pub(super) reason: String,
    /// What it is made from; `None` where its record cannot be read.
    pub(super) spec: Option<Arc<Spec>>,
    pub(super) limits: Vec<LimitStatus>,
    /// There while it is running or frozen.
    pub(super) live: Option<L>,
}

impl<L> Status<L> {
    /// In this state, with these limits.
    pub(super) fn new(state: State, limits: Vec<LimitStatus>) -> Self {
        Self {
            state,
            reason: String::new(),
            spec: None,
            limits,
            live: None,
        }
    }
}

/// A sandbox as it is now, for a caller.
#[derive(Debug, Clone)]
pub struct View {
    /// Which one.
    pub identity: Identity,
    /// What it is doing.
    pub state: State,
    /// Why it is damaged, or was frozen or stopped unasked; empty otherwise.
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
    /// When it is frozen, stopped and deleted for want of use; `None` where its record cannot be read.
    pub idle: Option<IdlePolicy>,
    /// How long it has not been used; `None` while it is in use.
    pub idle_for: Option<Duration>,
    /// Streams of runs that are open.
    pub open_streams: u32,
    /// How tightly it is held.
    pub confinement: Confinement,
}

#[cfg(test)]
impl View {
    /// One of which nothing is known.
    pub(crate) fn nothing(identity: Identity) -> Self {
        let (handle, _) = Handle::<()>::new(identity, 0, Status::new(State::Stopped, Vec::new()));
        handle.view()
    }
}

/// What a pause came to.
#[derive(Debug, Clone)]
pub struct Paused {
    /// The sandbox, frozen.
    pub sandbox: View,
    /// Bytes of memory that went back to the host; `None` where that cannot be had, or it was frozen already.
    pub reclaimed_bytes: Option<u64>,
}

impl<L: Clone> Handle<L> {
    /// A handle and the end of its queue that its task reads.
    pub(super) fn new(
        identity: Identity,
        created_at_ms: u64,
        status: Status<L>,
    ) -> (Self, mpsc::Receiver<Request<L>>) {
        let (requests, receiver) = mpsc::channel(REQUESTS_MAX);
        let teller = Arc::new(Teller::new(identity.clone()));
        let (runs, activity) = (RunTable::default(), Activity::default());
        runs.tell_changes_to(&teller);
        activity.tell_changes_to(&teller);
        let shared = Shared {
            identity,
            created_at_ms,
            runs,
            status: RwLock::new(status),
            activity,
            teller,
            gate: Arc::default(),
            requests,
        };
        (Self(Arc::new(shared)), receiver)
    }

    /// What it is doing.
    pub fn state(&self) -> State {
        self.status().state
    }

    /// What it is made from, unless its record cannot be read.
    pub fn spec(&self) -> Option<Arc<Spec>> {
        self.status().spec.clone()
    }

    /// The started sandbox, if it has processes or can have some: running or frozen. Never wakes it.
    pub fn live_now(&self) -> Option<L> {
        self.status().live.clone()
    }

    /// The started sandbox. Starts it if it is stopped; if it is frozen, does what `resume` says. It may be stopped or
    /// frozen again by the time the caller has it: [`admit`](Self::admit) keeps it.
    pub async fn live(&self, resume: Resume) -> Result<L> {
        let _in_use = self.use_now();
        match self.running_now() {
            Some(live) => Ok(live),
            None => self.ask(|reply| Request::Start(resume, reply)).await,
        }
    }

    /// Leave to spawn in it. Starts it if it is stopped; if it is frozen, does what `resume` says.
    pub async fn admit(&self, resume: Resume) -> Result<Admission<L>> {
        let in_use = self.use_now();
        for _ in 0..ADMIT_ATTEMPTS {
            let gate = Arc::clone(&self.0.gate).read_owned().await;
            if let Some(live) = self.running_now() {
                return Ok(Admission {
                    live,
                    in_use,
                    _gate: gate,
                });
            }
            // Its task may need the gate for itself.
            drop(gate);
            self.ask(|reply| Request::Start(resume, reply)).await?;
        }
        let name = &self.identity().name;
        let text = format!("sandbox {name} is stopped or paused by others all the time");
        Err(Error::new(ErrorKind::Aborted, SANDBOX_CONTENDED, text).hint("call again"))
    }

    /// Takes all CPU from its processes, and gives their memory back.
    pub async fn pause(&self) -> Result<Paused> {
        self.ask(Request::Pause).await
    }

    /// Gives them CPU again.
    pub async fn resume(&self) -> Result<()> {
        let _in_use = self.use_now();
        self.ask(Request::Resume).await
    }

    /// Changes limits, idle policy or labels.
    pub async fn change(&self, change: Change) -> Result<View> {
        self.ask(|reply| Request::Update(Box::new(change), reply))
            .await
    }

    /// Ends every process.
    pub async fn stop(&self) -> Result<()> {
        self.ask(Request::Stop).await
    }

    /// Ends every process and removes all files.
    pub async fn delete(&self) -> Result<()> {
        self.ask(Request::Delete).await
    }

    /// It as it is now.
    pub fn view(&self) -> View {
        let status = self.status();
        let spec = status.spec.as_deref();
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
            idle: spec.map(|spec| spec.idle),
            idle_for: self.0.activity.idle_for(),
            open_streams: self.0.activity.streams(),
            confinement: spec.map(|spec| spec.confinement).unwrap_or_default(),
        }
    }

    /// Whether a filter means it.
    pub(super) fn is_meant_by(&self, filter: &Filter) -> bool {
        static NONE: BTreeMap<String, String> = BTreeMap::new();
        let status = self.status();
        let labels = status.spec.as_deref().map_or(&NONE, |spec| &spec.labels);
        filter.matches(status.state, labels)
    }

    /// For its task alone: takes the started sandbox, so that nobody else gets it any more, and enters `state`.
    pub(super) fn take_live(&self, state: State) -> Option<L> {
        let live = {
            let mut status = self.status_mut();
            status.state = state;
            status.live.take()
        };
        self.0.teller.tell();
        live
    }

    /// The started sandbox, if it runs.
    fn running_now(&self) -> Option<L> {
        let status = self.status();
        let live = status.live.as_ref();
        live.filter(|_| status.state == State::Running).cloned()
    }
}

impl<L> Handle<L> {
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

    /// Keeps it in use, so that its idle policy leaves it alone, until the guard is dropped: for a live run.
    pub fn use_now(&self) -> Use {
        self.0.activity.use_now()
    }

    /// Keeps it in use and counts as an open stream, until the guard is dropped: for a stream that delivers a run's events
    /// to a caller.
    pub fn open_stream(&self) -> StreamUse {
        self.0.activity.open_stream()
    }

    /// Resolves when nothing is left of it but files in the trash.
    pub async fn gone(&self) {
        self.0.requests.closed().await;
    }

    /// For its task alone, and for who takes it up.
    pub(super) fn activity(&self) -> &Activity {
        &self.0.activity
    }

    /// For its task alone: keeps everybody from spawning. Waits for those who are about to.
    pub(super) async fn close_gate(&self) -> OwnedRwLockWriteGuard<()> {
        Arc::clone(&self.0.gate).write_owned().await
    }

    /// Holds the gate as who is about to spawn does, but without being a use.
    #[cfg(test)]
    pub(super) async fn hold_gate(&self) -> OwnedRwLockReadGuard<()> {
        Arc::clone(&self.0.gate).read_owned().await
    }

    /// For its task alone.
    pub(super) fn update(&self, change: impl FnOnce(&mut Status<L>)) {
        change(&mut self.status_mut());
        self.0.teller.tell();
    }

    /// For the table: changes are told to its watchers from here on.
    pub(super) fn tell_changes_to(&self, changes: &Changes) {
        self.0.teller.connect(changes);
    }

    /// For its task alone: when it was created.
    pub(super) fn created_at_ms(&self) -> u64 {
        self.0.created_at_ms
    }

    async fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> Request<L>) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let sent = self.0.requests.send(request(reply)).await;
        sent.map_err(|_| self.is_gone())?;
        answer
            .await
            .map_err(|_| match self.0.requests.is_closed() {
                true => self.is_gone(),
                // Its task lives on, and has panicked over this.
                false => panicked(),
            })?
    }

    /// The error of a call that came too late.
    fn is_gone(&self) -> Error {
        Error::new(
            ErrorKind::NotFound,
            SANDBOX_NOT_FOUND,
            format!("sandbox {} is gone", self.identity().name),
        )
        .hint("`lodge create NAME` creates it anew; in the API, Acquire does")
    }

    fn status(&self) -> RwLockReadGuard<'_, Status<L>> {
        // Each change is whole before its guard drops; a panic elsewhere must not take the sandbox with it.
        self.0.status.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn status_mut(&self) -> RwLockWriteGuard<'_, Status<L>> {
        self.0
            .status
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where an answer goes.
pub(super) type Reply<T> = oneshot::Sender<Result<T>>;

/// What keeps spawning and freezing apart.
type Gate = tokio::sync::RwLock<()>;

/// The reason code of calls to a sandbox that is not there.
pub(super) const SANDBOX_NOT_FOUND: &str = "SANDBOX_NOT_FOUND";

/// The reason code of calls that others undo faster than they get on.
pub(super) const SANDBOX_CONTENDED: &str = "SANDBOX_CONTENDED";
