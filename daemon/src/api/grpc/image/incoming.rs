//! What the caller of an import sends: one spec, then chunks. A caller that says nothing for too long is given up on,
//! since it holds one of few places.

use std::time::Duration;

use lodge_proto::v1 as wire;
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt as _};
use tonic::Status;
use wire::import_request::Message;

use super::super::status::status;
use super::Events;
use crate::error::{Error, ErrorKind};
use crate::image::ImageName;

/// Largest chunk, as the API says.
const CHUNK_MAX: usize = 1024 * 1024;
/// How long the next message may take. An archive comes from a disk or a network; both have failed by then.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// What goes from the wire to the worker. A channel that closes before `End` means that the caller went away.
#[derive(Debug)]
pub(super) enum Piece {
    /// Some of the archive.
    Chunk(bytes::Bytes),
    /// All of it was sent.
    End,
    /// The caller did what is not allowed.
    Refused(Error),
}

/// The name in the first message.
pub(super) async fn first_name(stream: &mut (impl Incoming + Unpin)) -> Result<ImageName, Status> {
    let first = next(stream).await??;
    match first.and_then(|request| request.message) {
        Some(Message::Spec(spec)) => {
            ImageName::parse(&spec.name).map_err(|error| status(&error.into()))
        }
        _ => Err(status(&Error::invalid(
            "MISSING_SPEC",
            "the first message is not a spec",
        ))),
    }
}

/// Hands the caller's messages on, until either side goes away.
pub(super) async fn forward(
    mut stream: impl Incoming + Unpin,
    pieces: mpsc::Sender<Piece>,
    events: Events,
) {
    loop {
        let message = tokio::select! {
            message = next(&mut stream) => message,
            () = events.closed() => return,
        };
        let piece = match message {
            Ok(Ok(message)) => piece(message),
            // The caller went away.
            Ok(Err(_)) => return,
            Err(silent) => Piece::Refused(silent),
        };
        let last = !matches!(piece, Piece::Chunk(_));
        if pieces.send(piece).await.is_err() || last {
            return;
        }
    }
}

/// A caller's messages: tonic's stream, or a test's.
pub(super) trait Incoming: Stream<Item = Result<wire::ImportRequest, Status>> {}
impl<S: Stream<Item = Result<wire::ImportRequest, Status>>> Incoming for S {}

/// The next message, `None` at the end; what the wire says of it is the inner result.
async fn next(
    stream: &mut (impl Incoming + Unpin),
) -> Result<Result<Option<wire::ImportRequest>, Status>, Error> {
    match tokio::time::timeout(SILENCE_MAX, stream.next()).await {
        Ok(message) => Ok(message.transpose()),
        Err(_) => Err(silent()),
    }
}

fn piece(message: Option<wire::ImportRequest>) -> Piece {
    let Some(request) = message else {
        return Piece::End;
    };
    match request.message {
        Some(Message::Chunk(chunk)) if chunk.len() <= CHUNK_MAX => Piece::Chunk(chunk),
        _ => Piece::Refused(
            Error::invalid("INVALID_CHUNK", "a message after the first is not a chunk")
                .hint("send chunks of at most 1 MiB after one spec"),
        ),
    }
}

fn silent() -> Error {
    let seconds = SILENCE_MAX.as_secs();
    let message = format!("nothing of the archive came for {seconds} s; the import was given up");
    Error::new(ErrorKind::Aborted, "IMPORT_SILENT", message)
        .hint("import again from a source that keeps sending")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four silent callers would keep everybody else from importing.
    #[tokio::test(start_paused = true)]
    async fn a_silent_caller_is_given_up() {
        let chunk = wire::ImportRequest {
            message: Some(Message::Chunk(vec![1; 8].into())),
        };
        let stream = tokio_stream::once(Ok(chunk)).chain(tokio_stream::pending());
        let (pieces_in, mut pieces) = mpsc::channel(4);
        let (events, _events_out) = mpsc::channel(1);
        tokio::spawn(forward(stream, pieces_in, events));
        let first = pieces.recv().await;
        assert!(matches!(first, Some(Piece::Chunk(_))), "{first:?}");
        match pieces.recv().await {
            Some(Piece::Refused(error)) => assert_eq!(error.reason(), "IMPORT_SILENT"),
            other => panic!("{other:?}"),
        }
        assert!(pieces.recv().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_never_begins_is_given_up() {
        let refused = first_name(&mut tokio_stream::pending()).await;
        assert_eq!(
            refused.expect_err("it was waited for").code(),
            tonic::Code::Aborted
        );
    }
}
