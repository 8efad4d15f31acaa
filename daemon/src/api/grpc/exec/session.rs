//! The stream of a `Start`: events out, standard input in, and what the caller's departure means.

use futures_util::stream::{Stream, StreamExt as _, unfold};
use lodge_proto::v1 as wire;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Status, Streaming};

use super::messages::{self, Input};
use crate::error::{Error, Result};
use crate::exec::Started;
use crate::exec::run::Run;
use crate::exec::stdin::{StdinPipe, Taken};
use crate::exec::stream::{Event, Events, Place};

/// What becomes of a run whose caller goes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnDisconnect {
    /// It goes on.
    GoOn,
    /// It is ended as CANCELLED.
    Cancel,
}

/// Notices that a caller has gone: dropped before `stayed`, it cancels the run if that was asked for.
pub(super) struct Departure(Option<Run>);

impl Departure {
    pub(super) fn watch(run: Run, on_disconnect: OnDisconnect) -> Self {
        Self(Some(run).filter(|_| on_disconnect == OnDisconnect::Cancel))
    }

    /// The caller got the end.
    pub(super) fn stayed(mut self) {
        self.0 = None;
    }
}

impl Drop for Departure {
    fn drop(&mut self) {
        if let Some(run) = self.0.take() {
            run.cancel();
        }
    }
}

/// The events of a started run, for the connection to take.
///
/// They are made when the connection asks for them, by the task that sends them: a queue between two tasks would cost
/// a switch for each event, and hold output that is better left in the log.
pub(super) fn serve(
    started: Started,
    requests: Streaming<wire::StartRequest>,
    on_disconnect: OnDisconnect,
    place: Place,
) -> impl Stream<Item = Result<wire::RunEvent, Status>> + Send + 'static {
    // The followers below pin the logs themselves.
    let Started {
        run,
        stdin,
        pins: _pins,
        origin,
    } = started;
    let session = Session {
        // Before anything else: what the run writes from now on waits for this reader.
        events: Events::of(run.clone(), place),
        caller: Departure::watch(run.clone(), on_disconnect),
        // A task of its own: a caller who does not read yet may write.
        input: Some(AbortOnDropHandle::new(tokio::spawn(listen(
            requests, stdin,
        )))),
    };
    let begin = tokio_stream::once(Ok(messages::started(run.id(), origin)));
    begin.chain(unfold(Some(session), async |session| session?.next().await))
}

/// A stream that goes on. Dropping it is the caller's departure.
struct Session {
    events: Events,
    caller: Departure,
    /// `None` once the caller has said all.
    input: Option<AbortOnDropHandle<Result<Said, Status>>>,
}

/// What a caller had to say until the end of their requests.
enum Said {
    /// Nothing: standard input was not theirs to write.
    Nothing,
    /// All of standard input, which the command has or will not take.
    Input,
}

impl Session {
    /// The next event, and the session if there may be more.
    async fn next(mut self) -> Option<(Result<wire::RunEvent, Status>, Option<Self>)> {
        loop {
            let event = tokio::select! {
                biased;
                said = said(&mut self.input) => match said {
                    Ok(Said::Nothing) => continue,
                    Ok(Said::Input) => return Some((Ok(messages::stdin_taken()), Some(self))),
                    Err(fault) => return Some((Err(fault), None)),
                },
                event = self.events.next() => event,
            };
            return match event {
                Ok(event @ Event::Exited(_)) => {
                    self.caller.stayed();
                    Some((Ok(messages::event(event)), None))
                }
                Ok(event) => Some((Ok(messages::event(event)), Some(self))),
                Err(error) => Some((Err(error.into()), None)),
            };
        }
    }
}

/// Waits until the caller has said all or broken the rules; for ever if that was told already.
async fn said(input: &mut Option<AbortOnDropHandle<Result<Said, Status>>>) -> Result<Said, Status> {
    let Some(listening) = input else {
        return std::future::pending().await;
    };
    let said = listening.await;
    *input = None;
    // It is aborted with the session only, and a panic in it must not end the output.
    said.unwrap_or(Ok(Said::Nothing))
}

/// Passes standard input on until the caller ends it. Ends with an error if the caller breaks the rules, or goes.
async fn listen(
    mut requests: Streaming<wire::StartRequest>,
    mut stdin: Option<StdinPipe>,
) -> Result<Said, Status> {
    let said = match stdin {
        Some(_) => Said::Input,
        None => Said::Nothing,
    };
    let mut ended = false;
    while let Some(request) = requests.message().await? {
        match messages::input_from(request)? {
            _ if ended => {
                return Err(Error::invalid("MISPLACED_MESSAGE", "input after its end").into());
            }
            Input::Eof => {
                stdin = None;
                ended = true;
            }
            Input::Bytes(bytes) => match &mut stdin {
                // Waiting here is what holds the caller back.
                Some(pipe) => match pipe.write(&bytes).await {
                    Ok(Taken::All | Taken::Closed) => {}
                    Err(error) => {
                        tracing::warn!(error = &error as &dyn std::error::Error, "input lost")
                    }
                },
                None => {
                    return Err(
                        Error::invalid("STDIN_NOT_OPEN", "input without `open_stdin`").into(),
                    );
                }
            },
        }
    }
    Ok(said)
}
