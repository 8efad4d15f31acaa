//! A panic ends the call that it happened in, and nothing else: without this it would end every call of its connection.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tower::Layer;

use super::grpc::status::status;
use crate::error::{Error, ErrorKind};

/// Adds the guard to a server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CatchPanics;

impl<S> Layer<S> for CatchPanics {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded(inner)
    }
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
        polled.unwrap_or_else(|_| Poll::Ready(Ok(fault().into_http())))
    }
}

/// As any failure it has a reason. What it was is on standard error, with its place.
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
}
