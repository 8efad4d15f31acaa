//! The stream of an `Attach`: the events of a run that was started before.
//!
//! It takes no input and decides nothing about the run: dropping it leaves the run as it is.

use futures_util::stream::{Stream, StreamExt as _, unfold};
use lodge_proto::v1 as wire;
use tonic::Status;

use super::messages;
use crate::exec::Run;
use crate::exec::stream::{Event, Events, Offsets};

/// What the caller has already.
pub(super) fn offsets_from(request: &wire::AttachRequest) -> Offsets {
    Offsets {
        stdout: request.stdout_offset,
        stderr: request.stderr_offset,
    }
}

/// The events of a run, made when the connection asks for them (see `session::serve`).
pub(super) fn serve(
    run: &Run,
    events: Events,
) -> impl Stream<Item = Result<wire::RunEvent, Status>> + Send + 'static {
    let begin = tokio_stream::once(Ok(messages::attached(run.id())));
    begin.chain(unfold(Some(events), async |events| next(events?).await))
}

/// The next event, and the events if there may be more.
async fn next(mut events: Events) -> Option<(Result<wire::RunEvent, Status>, Option<Events>)> {
    Some(match events.next().await {
        Ok(event @ Event::Exited(_)) => (Ok(messages::event(event)), None),
        Ok(event) => (Ok(messages::event(event)), Some(events)),
        Err(error) => (Err(error.into()), None),
    })
}
