//! A panic ends the call that it happened in, and nothing else: without this it would end every call of its connection.
//! That goes for the answer itself and for every message of a stream.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Body as HttpBody, Service, http};

use super::grpc::status::status;
use crate::error::{Error, ErrorKind};

/// Guards a server's calls, as a layer of it.
pub(crate) fn catch_panics<S>(inner: S) -> Guarded<S> {
    Guarded(inner)
}

/// A service whose calls may panic.
#[derive(Debug, Clone)]
pub(crate) struct Guarded<S>(S);

impl<S, R> Service<R> for Guarded<S>
where
    S: Service<R, Response = http::Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Call<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        Call(Box::pin(self.0.call(request)))
    }
}

/// One call.
pub(crate) struct Call<F>(Pin<Box<F>>);

impl<F, E> Future for Call<F>
where
    F: Future<Output = Result<http::Response<Body>, E>>,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // The call is not polled again after a panic, so that no broken state of it is seen.
        let polled = catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(cx)));
        match polled {
            Ok(polled) => polled.map_ok(|answer| answer.map(|body| Body::new(Answer::Whole(body)))),
            Err(_) => Poll::Ready(Ok(fault().into_http())),
        }
    }
}

/// The body of an answer, which may panic in the middle of a stream.
enum Answer {
    Whole(Body),
    /// It has panicked, and is not polled again.
    Broken,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Status>>> {
        let Self::Whole(body) = &mut *self else {
            return Poll::Ready(None);
        };
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(body).poll_frame(cx)));
        polled.unwrap_or_else(|_| {
            *self = Self::Broken;
            Poll::Ready(Some(Err(fault())))
        })
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_end_stream(),
            Self::Broken => true,
        }
    }

    fn size_hint(&self) -> http_body::SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Broken => http_body::SizeHint::with_exact(0),
        }
    }
}

/// As any failure it has a reason. Where it was is in the log.
fn fault() -> Status {
    let text = "the call panicked; this is a fault of lodged, see its log";
    status(&Error::new(ErrorKind::Internal, "INTERNAL", text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_becomes_an_internal_error() {
        let panicking: Pin<Box<_>> = Box::pin(async {
            panic!("as a faulty call would") as Result<http::Response<Body>, ()>
        });
        let response = Call(panicking).await.expect("an answer");
        assert_eq!(response.headers()["grpc-status"], "13");
        assert!(response.headers().contains_key("grpc-status-details-bin"));
    }

    /// A stream that panics at its first message.
    struct Panicking;

    impl HttpBody for Panicking {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<http_body::Frame<Bytes>, Status>>> {
            panic!("as a faulty stream would")
        }
    }

    #[tokio::test]
    async fn a_panic_in_a_stream_ends_that_stream_alone() {
        let answering: Pin<Box<_>> =
            Box::pin(async { Ok::<_, ()>(http::Response::new(Body::new(Panicking))) });
        let mut body = Call(answering).await.expect("an answer").into_body();
        let mut next = async || std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await;
        let status = next().await.expect("a frame").expect_err("a fault");
        assert_eq!(status.code(), tonic::Code::Internal);
        assert!(next().await.is_none(), "it goes on after the fault");
    }
}
