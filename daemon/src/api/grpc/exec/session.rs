//! The stream of a `Start`: events out, standard input in, and what the caller's departure means.

use lodge_proto::v1 as wire;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use super::messages::{self, Input};
use crate::error::{Error, Result};
use crate::exec::Started;
use crate::exec::run::Run;
use crate::exec::stdin::{StdinPipe, Taken};
use crate::exec::stream::{Event, Events};

/// Events that wait for the connection. Each has up to 64 KiB; beyond that the log is where output waits.
const EVENTS_WAITING: usize = 2;

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

type Outgoing = mpsc::Sender<Result<wire::RunEvent, Status>>;

/// Serves a started run; the events come out of the receiver.
pub(super) fn serve(
    started: Started,
    requests: Streaming<wire::StartRequest>,
    on_disconnect: OnDisconnect,
) -> mpsc::Receiver<Result<wire::RunEvent, Status>> {
    let (sender, receiver) = mpsc::channel(EVENTS_WAITING);
    let Started { run, stdin } = started;
    // Before anything else: what the run writes from now on waits for this reader.
    let events = Events::of(run.clone());
    let caller = Departure::watch(run.clone(), on_disconnect);
    tokio::spawn(async move {
        let told = tokio::select! {
            told = tell(&run, events, &sender) => told,
            Err(fault) = listen(requests, stdin) => Err(Some(fault)),
        };
        match told {
            Ok(()) => caller.stayed(),
            // Nobody may be there to hear it.
            Err(Some(fault)) => drop(sender.send(Err(fault)).await),
            Err(None) => {}
        }
    });
    receiver
}

/// Tells everything up to the end. An error without a status means that nobody listens any more.
async fn tell(run: &Run, mut events: Events, sender: &Outgoing) -> Result<(), Option<Status>> {
    let send = async |event| sender.send(Ok(event)).await.map_err(|_| None);
    send(messages::started(run.id())).await?;
    loop {
        let event = tokio::select! {
            event = events.next() => event.map_err(|error| Some(error.into()))?,
            () = sender.closed() => return Err(None),
        };
        let last = matches!(event, Event::Exited(_));
        send(messages::event(event)).await?;
        if last {
            return Ok(());
        }
    }
}

/// Passes standard input on until the caller ends it. Ends with an error if the caller breaks the rules, or goes.
async fn listen(
    mut requests: Streaming<wire::StartRequest>,
    mut stdin: Option<StdinPipe>,
) -> Result<(), Status> {
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
    Ok(())
}
