//! The task that owns a sandbox: it alone changes it, one request at a time, in the order in which they came.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::handle::{Handle, Paused, Reply, Resume, View};
use super::quota::Promised;
use super::runtime::{Cause, New, Runtime, Started};
use super::spec::Spec;
use super::state::{Decision, Event, Refusal, State, decide};
use super::table::Table;
use super::update::Change;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Pace, Record};
use idling::Watchman;
use mending::caught;

/// Update.
mod changing;
/// The idle policy.
pub(super) mod idling;
/// Pause and resume.
mod pausing;
/// What follows a panic, and an end that failed.
mod mending;

/// What is asked of a sandbox.
pub(super) enum Request<L> {
    /// Start it, if it is not.
    Start(Resume, Reply<L>),
    /// Freeze it.
    Pause(Reply<Paused>),
    /// Thaw it.
    Resume(Reply<()>),
    /// Change it.
    Update(Box<Change>, Reply<View>),
    /// End its processes.
    Stop(Reply<()>),
    /// End its processes and remove its files.
    Delete(Reply<()>),
}

impl<L> Request<L> {
    /// Answers whatever it is with an error.
    fn refuse(self, error: Error) {
        match self {
            Self::Start(_, reply) => answer(reply, Err(error)),
            Self::Pause(reply) => answer(reply, Err(error)),
            Self::Update(_, reply) => answer(reply, Err(error)),
            Self::Resume(reply) | Self::Stop(reply) | Self::Delete(reply) => {
                answer(reply, Err(error));
            }
        }
    }
}

/// What is left to do after an event.
enum Next {
    Serve,
    End,
}

/// A sandbox's task.
pub(super) struct Actor<R: Runtime> {
    pub(super) runtime: R,
    pub(super) table: Table<R::Live>,
    pub(super) handle: Handle<R::Live>,
    pub(super) requests: mpsc::Receiver<Request<R::Live>>,
    /// None where it cannot be read.
    pub(super) record: Option<Arc<Record>>,
    /// The uid range, as far as it is known.
    pub(super) uid_base: Option<u32>,
    /// When it looks at its want of use.
    pub(super) watchman: Watchman,
    /// What would mend it, if it is damaged.
    pub(super) remedy: Remedy,
    /// What it has of its tenant's.
    pub(super) promised: Promised,
}

/// What would mend a damaged sandbox, short of its delete and of the next daemon, which looks at it anew.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Remedy {
    /// Nothing.
    #[default]
    None,
    /// The end of what it may still have, which failed: a stop tries that again, and so does whoever needs it.
    EndAgain,
    /// The end of what it has and what cannot be reached: a stop ends that. Nobody else does, since it may be at work.
    EndIfAsked,
}

/// What ended runs had in their pipes is in their logs within this time, when a sandbox is deleted.
const DRAINED_WITHIN: Duration = Duration::from_secs(2);

/// Why it is damaged.
const NOT_ENDED: &str = "its processes could not be ended";
const NOT_DELETED: &str = "it could not be deleted";

impl<R: Runtime> Actor<R> {
    /// Creates the sandbox, then serves it. A panic is a failure like others. If it cannot be created, everybody who waits for it gets the error.
    pub(super) async fn create(mut self, spec: Spec) {
        match caught(self.create_and_start(spec)).await {
            Ok((record, started)) => {
                self.uid_base = Some(record.uid_base);
                self.record = Some(record);
                self.enter_started(started);
                self.serve().await;
            }
            Err(error) => {
                self.table.remove(&self.handle);
                self.refuse_all(error).await;
            }
        }
    }

    /// Serves a sandbox until it is deleted. A panic is that one change's alone: who asked for it is told so.
    pub(super) async fn serve(mut self) {
        loop {
            // What a panic left in it is seen by `settle` alone, which takes nothing for granted but what the handle says.
            match AssertUnwindSafe(self.serve_one()).catch_unwind().await {
                Ok(Next::Serve) => {}
                Ok(Next::End) => break,
                Err(_) => self.settle().await,
            }
        }
        self.after_the_end().await;
    }

    /// Waits for the next thing that is asked of it or happens to it, and does what follows.
    async fn serve_one(&mut self) -> Next {
        self.set_watch();
        let (runtime, handle) = (self.runtime.clone(), self.handle.clone());
        let live = handle.live_now();
        tokio::select! {
            // Who asks comes before what nobody asked for.
            biased;
            request = self.requests.recv() => self.on_request(request).await,
            () = died(&runtime, live.as_ref()) => self.on_holder_died(live).await,
            () = handle.activity().used() => {
                self.on_used().await;
                Next::Serve
            }
            () = self.watchman.time_to_look() => self.on_look().await,
        }
    }

    async fn on_request(&mut self, request: Option<Request<R::Live>>) -> Next {
        match request {
            Some(Request::Start(resume, reply)) => answer(reply, self.start(resume).await),
            Some(Request::Pause(reply)) => self.pause(reply).await,
            Some(Request::Resume(reply)) => answer(reply, self.resume().await),
            Some(Request::Update(change, reply)) => answer(reply, self.update(*change).await),
            Some(Request::Stop(reply)) => answer(reply, self.stop().await),
            Some(Request::Delete(reply)) => {
                let deleted = self.delete().await;
                let next = if deleted.is_ok() {
                    self.promised.gone();
                    Next::End
                } else {
                    Next::Serve
                };
                answer(reply, deleted);
                return next;
            }
            // The daemon ends: no handle is left.
            None => return Next::End,
        }
        Next::Serve
    }

    async fn on_holder_died(&mut self, live: Option<R::Live>) -> Next {
        tracing::warn!(sandbox = %self.handle.id(), "holder died; the sandbox is stopped");
        if let Decision::Go(state) = self.decide(Event::HolderDied) {
            self.handle.take_live(state);
            if let Some(live) = live
                && let Err(error) = self.end_processes(live, Cause::HolderDied, state).await
            {
                unheard(&error);
            }
        }
        Next::Serve
    }

    async fn start(&mut self, resume: Resume) -> Result<R::Live> {
        let event = match resume {
            Resume::Auto => Event::Start,
            Resume::Error => Event::Enter,
        };
        if self.remedy == Remedy::EndAgain {
            self.stop().await?;
        }
        match self.decide(event) {
            Decision::Go(_) => match self.handle.live_now() {
                Some(live) => self.thaw(live).await,
                None => self.launch().await,
            },
            Decision::Stay => self
                .handle
                .live_now()
                .ok_or_else(|| self.refusal(Refusal::NotRunning)),
            Decision::Refuse(refusal) => Err(self.refusal(refusal)),
        }
    }

    async fn launch(&mut self) -> Result<R::Live> {
        // Before it runs: what was noted would have the next daemon stop it again, or delete it.
        self.forget_unused().await;
        let record = self.record()?;
        let share = self.promised.starting(&record.spec.limits)?;
        let started = self.runtime.start(record).await?;
        let live = started.live.clone();
        self.promised.started(share);
        self.enter_started(started);
        Ok(live)
    }

    async fn stop(&mut self) -> Result<()> {
        let event = match self.remedy {
            Remedy::None => Event::Stop,
            Remedy::EndAgain | Remedy::EndIfAsked => Event::EndAgain,
        };
        match self.decide(event) {
            Decision::Go(_) if self.remedy != Remedy::None => self.end_again().await,
            // Nobody gets it from here on: who needs it waits for its next start.
            Decision::Go(state) => match self.take_live_alone(self.handle.state()).await {
                Some(live) => {
                    self.handle.runs().note_stopping().await;
                    self.end_processes(live, Cause::Asked, state).await
                }
                None => Ok(()),
            },
            // Whatever is wrong with it: a stop ends its processes.
            Decision::Stay if self.handle.state() == State::Damaged => {
                self.runtime.end_leftovers(self.handle.id().clone()).await
            }
            Decision::Stay => Ok(()),
            Decision::Refuse(refusal) => Err(self.refusal(refusal)),
        }
    }

    async fn delete(&mut self) -> Result<()> {
        let alone = self.alone().await;
        let live = self.begin_delete();
        drop(alone);
        self.finish_delete(live).await
    }

    /// From here on nobody gets it any more. Whoever is about to spawn does so first, or would meet a sandbox half-gone; one who
    /// takes too long for that holds up no end.
    async fn take_live_alone(&self, then: State) -> Option<R::Live> {
        let alone = self.alone().await;
        let live = self.handle.take_live(then);
        drop(alone);
        live
    }

    /// From here on nobody gets it any more.
    fn begin_delete(&self) -> Option<R::Live> {
        let state = match self.decide(Event::Delete) {
            Decision::Go(state) => state,
            Decision::Stay | Decision::Refuse(_) => State::Deleting,
        };
        self.handle.take_live(state)
    }

    async fn finish_delete(&mut self, live: Option<R::Live>) -> Result<()> {
        if let Some(live) = live {
            self.end_processes(live, Cause::Deleted, State::Deleting)
                .await?;
            // A caller may wait for the output of a run that ended just before. A disk that hangs holds up no delete.
            let drained = self.handle.runs().drained();
            if timeout(DRAINED_WITHIN, drained).await.is_err() {
                tracing::warn!(sandbox = %self.handle.id(), "deleted before all output was in its log");
            }
        }
        let deleted = self.runtime.put_away(self.handle.id().clone()).await;
        // It is there still, and can be deleted again.
        deleted.map_err(|error| self.damage(NOT_DELETED, Remedy::None, error))
    }

    /// Ends the processes of a started sandbox. If that fails, it is damaged: nobody knows what still runs in it.
    async fn end_processes(&mut self, live: R::Live, cause: Cause, then: State) -> Result<()> {
        let ended = self.runtime.end(live, cause).await;
        self.enter_ended(ended, then)
    }

    fn enter_ended(&mut self, ended: Result<()>, then: State) -> Result<()> {
        // No pause is left of it, either way.
        self.handle.activity().set_pace(Pace::Counting);
        if let Err(error) = ended {
            return Err(self.damage(NOT_ENDED, Remedy::EndAgain, error));
        }
        self.remedy = Remedy::None;
        self.promised.ended();
        self.handle.update(|status| {
            status.state = then;
            status.reason.clear();
        });
        Ok(())
    }

    /// Marks the sandbox as damaged. Gives the error back, with the sandbox's name: who asked gets it, and logs it.
    fn damage(&mut self, what: &str, remedy: Remedy, error: Error) -> Error {
        self.remedy = remedy;
        self.handle.update(|status| {
            status.state = State::Damaged;
            status.reason = format!("{what}: {error}");
        });
        error.during(&format!(
            "sandbox {} is damaged: {what}",
            self.handle.identity().name
        ))
    }

    async fn create_and_start(&mut self, spec: Spec) -> Result<(Arc<Record>, Started<R::Live>)> {
        let share = self.promised.starting(&spec.limits)?;
        let new = New {
            id: self.handle.id().clone(),
            spec,
            created_at_ms: self.handle.created_at_ms(),
        };
        let record = self.runtime.create(new).await?;
        match caught(self.runtime.start(Arc::clone(&record))).await {
            Ok(started) => {
                self.promised.started(share);
                Ok((record, started))
            }
            Err(error) => {
                self.runtime.uncreate(record).await;
                Err(error)
            }
        }
    }

    /// The end of a sandbox that is out of sight: everybody who still asks is told, and its files go.
    async fn after_the_end(mut self) {
        if self.handle.state() != State::Deleting {
            return;
        }
        self.table.remove(&self.handle);
        self.requests.close();
        while let Some(request) = self.requests.recv().await {
            match request {
                Request::Delete(reply) => answer(reply, Ok(())),
                other => other.refuse(self.refusal(Refusal::IsBeingDeleted)),
            }
        }
        let id = self.handle.id().clone();
        self.runtime.remove(id, self.uid_base);
    }

    /// Everybody who waits gets the error; the first one gets its causes too, so that they are logged once.
    async fn refuse_all(&mut self, error: Error) {
        self.requests.close();
        let replica = error.replica();
        let mut first = Some(error);
        while let Some(request) = self.requests.recv().await {
            let error = first.take().unwrap_or_else(|| replica.replica());
            request.refuse(error);
        }
        if let Some(error) = first {
            unheard(&error);
        }
    }

    fn decide(&self, event: Event) -> Decision {
        decide(self.handle.state(), event)
    }

    /// It runs.
    fn enter_started(&self, started: Started<R::Live>) {
        self.handle.update(|status| {
            status.state = State::Running;
            status.reason.clear();
            status.live = Some(started.live);
            status.limits = started.limits;
        });
    }

    fn record(&self) -> Result<Arc<Record>> {
        self.record
            .clone()
            .ok_or_else(|| self.refusal(Refusal::IsDamaged))
    }

    fn refusal(&self, refusal: Refusal) -> Error {
        let name = &self.handle.identity().name;
        let (reason, text) = match refusal {
            Refusal::NotYetCreated => ("SANDBOX_CREATING", "is still being created".to_owned()),
            Refusal::NotRunning => ("SANDBOX_NOT_RUNNING", "is not running".to_owned()),
            Refusal::IsFrozen => ("SANDBOX_IS_FROZEN", "is frozen".to_owned()),
            Refusal::IsDamaged => (
                "SANDBOX_DAMAGED",
                format!("is damaged: {}", self.handle.view().reason),
            ),
            Refusal::IsBeingDeleted => (IS_BEING_DELETED, "is being deleted".to_owned()),
            Refusal::AlreadyCreated => ("SANDBOX_EXISTS", "exists already".to_owned()),
        };
        let error = Error::new(
            ErrorKind::FailedPrecondition,
            reason,
            format!("sandbox {name} {text}"),
        );
        error.hint(match refusal {
            Refusal::NotYetCreated => "call again in a moment",
            Refusal::NotRunning => "start it first; a run does so by itself",
            Refusal::IsFrozen => "thaw it: `lodge resume NAME`, Resume in the API; or let the call do so: no `--resume error`, in the API `resume = AUTO`",
            Refusal::IsDamaged if self.remedy == Remedy::EndAgain => {
                "stop it, which tries again to end its processes, or delete it"
            }
            Refusal::IsDamaged if self.remedy == Remedy::EndIfAsked => {
                "restart lodged, which tries again to reach it; or stop it, which ends its processes and keeps its files"
            }
            Refusal::IsDamaged => "mend what it says and restart lodged, or delete it",
            Refusal::IsBeingDeleted => "`lodge create NAME` creates it anew; in the API, Acquire does",
            Refusal::AlreadyCreated => "report this: it is a fault of Lodge",
        })
    }
}

/// Waits until PID 1 of a started sandbox has died.
async fn died<R: Runtime>(runtime: &R, live: Option<&R::Live>) {
    match live {
        Some(live) => runtime.died(live).await,
        None => std::future::pending().await,
    }
}

/// Reason code by which `acquire` knows that it should wait and create anew.
pub(super) const IS_BEING_DELETED: &str = "SANDBOX_IS_BEING_DELETED";

/// Answers a caller. One who is gone logs nothing any more, so that an error is logged here.
fn answer<T>(reply: Reply<T>, result: Result<T>) {
    if let Err(Err(error)) = reply.send(result) {
        unheard(&error);
    }
}

/// Logs an error that nobody waits for.
fn unheard(error: &Error) {
    tracing::warn!(reason = error.reason(), error = %error.chain(), "a sandbox's change failed");
}
