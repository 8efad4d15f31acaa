//! Counts the calls of each connection, and answers those of a connection without a place: RESOURCE_EXHAUSTED, at once.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Body as HttpBody, Service, http};

use super::connections::{Admission, CallOf, Guest};
use crate::error::{Error, ErrorKind};

/// Counts a server's calls, as a layer of it.
pub(crate) fn count_calls<S>(inner: S) -> Counted<S> {
    Counted(inner)
}

/// A service whose calls are counted.
#[derive(Debug, Clone)]
pub(crate) struct Counted<S>(S);

impl<S, B> Service<http::Request<B>> for Counted<S>
where
    S: Service<http::Request<B>, Response = http::Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let Some(guest) = request.extensions().get::<Arc<Guest>>() else {
            return Box::pin(self.0.call(request));
        };
        if guest.admission() == Admission::Seat {
            return Box::pin(async { Ok(Status::from(no_place()).into_http()) });
        }
        let call = guest.call();
        let answer = self.0.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            Ok(answer.map(|body| Body::new(Answer { body, _call: call })))
        })
    }
}

/// What a client is told that has no place.
fn no_place() -> Error {
    Error::new(
        ErrorKind::ResourceExhausted,
        "TOO_MANY_CONNECTIONS",
        "the daemon has no place for another connection of this client",
    )
    .hint("use one connection for all calls, and close those that are not needed")
}

/// An answer's body; the call lasts until it is done with.
struct Answer {
    body: Body,
    _call: CallOf,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}
