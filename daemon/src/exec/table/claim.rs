//! Calls that have a name: which of them may start a run.

use std::sync::Arc;

use tokio::sync::watch;

use super::{RunTable, ShortId, unreachable};
use crate::error::{Error, Result};
use crate::exec::entry::Begun;
use crate::exec::requests::{Answer, Lookup, Request, reused};
use crate::exec::run::Run;
use crate::sandbox::id::RunId;

/// What a call with a name may do.
pub(in crate::exec) enum Claimed {
    /// Start its run.
    New(Claim),
    /// Take the run of an earlier call.
    Earlier(Run),
}

/// The right to start the run of a name. Dropped before a run was started, it says that there is none.
pub(in crate::exec) struct Claim {
    table: RunTable,
    request: Request,
    tell: Option<watch::Sender<Option<Answer>>>,
    /// The run that was written down as about to start.
    begun: Option<RunId>,
}

/// Where a name was found.
enum Found {
    InMemory(Lookup),
    InHistory(ShortId),
}

/// Whether the history may have the name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum History {
    Asked,
    NotYetAsked,
}

impl RunTable {
    /// Takes a name, or finds what it has already. `number` is the name's own.
    pub(in crate::exec) async fn claim(&self, request: Request, number: u64) -> Result<Claimed> {
        let mut history = History::NotYetAsked;
        loop {
            match self.look_up(&request, number, history)? {
                Found::InMemory(Lookup::Claimed(tell)) => {
                    return Ok(Claimed::New(Claim {
                        table: self.clone(),
                        request,
                        tell: Some(tell),
                        begun: None,
                    }));
                }
                Found::InMemory(Lookup::Reused) => return Err(reused(&request.id)),
                Found::InMemory(Lookup::Started(run)) => {
                    return self.find(&run).await.map(Claimed::Earlier);
                }
                Found::InMemory(Lookup::Starting(answer)) => match told(answer).await {
                    Some(Answer::Run(run)) => return Ok(Claimed::Earlier(run)),
                    Some(Answer::Refused(error)) => return Err(error.replica()),
                    // Its caller went away before anything was started.
                    None => {}
                },
                Found::InHistory(id) => {
                    let run = self.recorded(&RunId::from(id)).await;
                    match run.map(|run| (run.request().cloned(), run)) {
                        Ok((Some(earlier), run)) if earlier == request => {
                            return Ok(Claimed::Earlier(run));
                        }
                        Ok((Some(earlier), _)) if earlier.id == request.id => {
                            return Err(reused(&request.id));
                        }
                        Err(error) if error.reason() != "RUN_NOT_FOUND" => return Err(error),
                        // Another name of the same number, or a run that has just gone.
                        _ => history = History::Asked,
                    }
                }
            }
        }
    }

    fn look_up(&self, request: &Request, number: u64, history: History) -> Result<Found> {
        let mut inner = self.lock();
        if let Some(lookup) = inner.requests.find(request) {
            return Ok(Found::InMemory(lookup));
        }
        let open = inner
            .open
            .iter()
            .filter_map(|one| one.begun.request.as_ref());
        if open.into_iter().any(|earlier| earlier.id == request.id) {
            return Err(unreachable());
        }
        match inner.history.by_request(number) {
            Some(kept) if history == History::NotYetAsked => Ok(Found::InHistory(kept.id)),
            _ => Ok(Found::InMemory(inner.requests.claim(request))),
        }
    }
}

async fn told(mut answer: watch::Receiver<Option<Answer>>) -> Option<Answer> {
    let answer = answer.wait_for(Option::is_some).await.ok()?;
    answer.clone()
}

impl Claim {
    /// The call.
    pub(in crate::exec) fn request(&self) -> &Request {
        &self.request
    }

    /// Writes down that its run is about to start: when what this gives is done, the next daemon knows of it.
    pub(in crate::exec) fn begin(
        &mut self,
        begun: Begun,
    ) -> impl Future<Output = ()> + Send + use<> {
        self.begun = Some(begun.run.clone());
        self.table.begin(begun)
    }

    /// The run was started, and is in the table.
    pub(in crate::exec) fn started(mut self, run: &Run) {
        self.answer(Answer::Run(run.clone()));
    }

    /// Nothing was started.
    pub(in crate::exec) fn refused(mut self, error: &Error) {
        self.give_up();
        self.answer(Answer::Refused(Arc::new(error.replica())));
    }

    fn answer(&mut self, answer: Answer) {
        if let Some(tell) = self.tell.take() {
            // Nobody may be waiting.
            tell.send_replace(Some(answer));
        }
    }

    fn give_up(&mut self) {
        self.table.lock().requests.release(&self.request);
        if let Some(run) = self.begun.take() {
            self.table.void(run);
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.tell.is_some() {
            self.give_up();
        }
    }
}
