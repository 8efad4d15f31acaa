//! The task that owns a sandbox: it alone changes it, one request at a time, in the order in which they came.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::create;
use super::delete;
use super::handle::{Handle, Reply};
use super::live::Live;
use super::platform::Platform;
use super::spec::Spec;
use super::start::{self, Started};
use super::state::{Decision, Event, Refusal, State, decide};
use super::stop::{self, Cause};
use super::table::Table;
use crate::error::{Error, ErrorKind, Result};
use crate::store::Record;

/// What is asked of a sandbox.
pub(super) enum Request {
    /// Start it, if it is not.
    Start(Reply<Live>),
    /// End its processes.
    Stop(Reply<()>),
    /// End its processes and remove its files.
    Delete(Reply<()>),
}

/// What is left to do after an event.
enum Next {
    Serve,
    End,
}

/// A sandbox's task.
pub(super) struct Actor {
    pub(super) platform: Arc<Platform>,
    pub(super) table: Table,
    pub(super) handle: Handle,
    pub(super) requests: mpsc::Receiver<Request>,
    /// None where it cannot be read.
    pub(super) record: Option<Arc<Record>>,
    /// The uid range, as far as it is known.
    pub(super) uid_base: Option<u32>,
}

impl Actor {
    /// Creates the sandbox, then serves it. If it cannot be created, everybody who waits for it gets the error.
    pub(super) async fn create(mut self, spec: Spec) {
        match self.create_and_start(spec).await {
            Ok((record, started)) => {
                self.uid_base = Some(record.uid_base);
                self.record = Some(record);
                self.go(Event::Created);
                self.set_started(started);
                self.serve().await;
            }
            Err(error) => {
                self.table.remove(&self.handle);
                self.refuse_all(error).await;
            }
        }
    }

    /// Serves a sandbox until it is deleted.
    pub(super) async fn serve(mut self) {
        loop {
            let next = match self.handle.live_now() {
                Some(live) => tokio::select! {
                    request = self.requests.recv() => self.on_request(request).await,
                    () = live.holder.died() => self.on_holder_died(live).await,
                },
                None => {
                    let request = self.requests.recv().await;
                    self.on_request(request).await
                }
            };
            if matches!(next, Next::End) {
                break;
            }
        }
        self.after_the_end().await;
    }

    async fn on_request(&mut self, request: Option<Request>) -> Next {
        match request {
            Some(Request::Start(reply)) => answer(reply, self.start().await),
            Some(Request::Stop(reply)) => answer(reply, self.stop().await),
            Some(Request::Delete(reply)) => {
                let deleted = self.delete().await;
                let next = if deleted.is_ok() {
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

    async fn on_holder_died(&mut self, live: Live) -> Next {
        tracing::warn!(sandbox = %live.id, pid = live.holder.pid(), "holder died; the sandbox is stopped");
        if let Decision::Go(state) = self.decide(Event::HolderDied) {
            self.handle.take_live(state);
            let ended = self.end_processes(live, Cause::HolderDied, state).await;
            if let Err(error) = ended {
                unheard(&error);
            }
        }
        Next::Serve
    }

    async fn start(&mut self) -> Result<Live> {
        match self.decide(Event::Start) {
            Decision::Go(_) => {
                let record = self.record()?;
                let started = self
                    .blocking(move |platform| start::start(platform, &record))
                    .await?;
                let live = started.live.clone();
                self.go(Event::Start);
                self.set_started(started);
                Ok(live)
            }
            Decision::Stay => self
                .handle
                .live_now()
                .ok_or_else(|| self.refusal(Refusal::NotRunning)),
            Decision::Refuse(refusal) => Err(self.refusal(refusal)),
        }
    }

    async fn stop(&mut self) -> Result<()> {
        match self.decide(Event::Stop) {
            // Nobody gets it from here on: who needs it waits for its next start.
            Decision::Go(state) => match self.handle.take_live(self.handle.state()) {
                Some(live) => self.end_processes(live, Cause::Asked, state).await,
                None => Ok(()),
            },
            Decision::Stay => Ok(()),
            Decision::Refuse(refusal) => Err(self.refusal(refusal)),
        }
    }

    async fn delete(&mut self) -> Result<()> {
        let state = match self.decide(Event::Delete) {
            Decision::Go(state) => state,
            Decision::Stay | Decision::Refuse(_) => State::Deleting,
        };
        if let Some(live) = self.handle.take_live(state) {
            self.end_processes(live, Cause::Asked, state).await?;
        }
        let id = self.handle.id().clone();
        let deleted = self.blocking(move |platform| {
            // Where there was nothing live, an earlier daemon may have left something.
            stop::end_leftovers(platform, &id)?;
            delete::put_out_of_sight(platform, &id)
        });
        // It is there still, and can be deleted again.
        deleted
            .await
            .map_err(|error| self.damage("it could not be deleted", error))
    }

    /// Ends the processes of a started sandbox. If that fails, it is damaged: nobody knows what still runs in it.
    async fn end_processes(&mut self, live: Live, cause: Cause, then: State) -> Result<()> {
        let ended = self
            .blocking(move |platform| stop::end_processes(platform, &live, cause))
            .await;
        match ended {
            Ok(()) => {
                self.handle.update(|status| status.state = then);
                Ok(())
            }
            Err(error) => Err(self.damage("its processes could not be ended", error)),
        }
    }

    /// Marks the sandbox as damaged. Gives the error back, with the sandbox's name: who asked gets it, and logs it.
    fn damage(&self, what: &str, error: Error) -> Error {
        self.handle.update(|status| {
            status.state = State::Damaged;
            status.reason = format!("{what}: {error}");
        });
        error.during(&format!(
            "sandbox {} is damaged: {what}",
            self.handle.identity().name
        ))
    }

    async fn create_and_start(&self, spec: Spec) -> Result<(Arc<Record>, Started)> {
        let (id, at) = (self.handle.id().clone(), self.handle.created_at_ms());
        self.blocking(move |platform| {
            let record = Arc::new(create::create(platform, id, spec, at)?);
            match start::start(platform, &record) {
                Ok(started) => Ok((record, started)),
                Err(error) => {
                    create::undo(platform, &record);
                    Err(error)
                }
            }
        })
        .await
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
                Request::Stop(reply) => answer(reply, Err(self.refusal(Refusal::IsBeingDeleted))),
                Request::Start(reply) => answer(reply, Err(self.refusal(Refusal::IsBeingDeleted))),
            }
        }
        let id = self.handle.id().clone();
        delete::remove_in_background(Arc::clone(&self.platform), id, self.uid_base);
    }

    /// Everybody who waits gets the error; the first one gets its causes too, so that they are logged once.
    async fn refuse_all(&mut self, error: Error) {
        self.requests.close();
        let replica = error.replica();
        let mut first = Some(error);
        while let Some(request) = self.requests.recv().await {
            let error = first.take().unwrap_or_else(|| replica.replica());
            match request {
                Request::Start(reply) => answer(reply, Err(error)),
                Request::Stop(reply) | Request::Delete(reply) => answer(reply, Err(error)),
            }
        }
        if let Some(error) = first {
            unheard(&error);
        }
    }

    fn decide(&self, event: Event) -> Decision {
        decide(self.handle.state(), event)
    }

    /// Enters the state that an event leads to.
    fn go(&self, event: Event) {
        if let Decision::Go(state) = self.decide(event) {
            self.handle.update(|status| status.state = state);
        }
    }

    fn set_started(&self, started: Started) {
        self.handle.update(|status| {
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
        match refusal {
            Refusal::IsDamaged => error.hint("delete it, or mend its record and restart lodged"),
            _ => error,
        }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Arc<Platform>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let platform = Arc::clone(&self.platform);
        let _permit = self
            .platform
            .starts
            .acquire()
            .await
            .expect("the semaphore is never closed");
        tokio::task::spawn_blocking(move || work(&platform))
            .await
            .unwrap_or_else(|error| {
                Err(Error::internal(
                    "INTERNAL",
                    "a change of the sandbox failed",
                    error,
                ))
            })
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
