//! Connections from the daemon's socket, at most so many at once. One more waits in the kernel's queue, as it would for a
//! busy daemon; nothing of it is in our memory.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_stream::Stream;
use tokio_util::sync::PollSemaphore;
use tonic::transport::server::Connected;

/// Connections at once. A client needs one for all of its calls.
const CONNECTIONS_MAX: usize = 1024;

/// The connections of a listener, as they come.
pub(crate) struct Connections {
    listener: UnixListener,
    places: PollSemaphore,
    place: Option<OwnedSemaphorePermit>,
}

impl Connections {
    pub(crate) fn new(listener: UnixListener) -> Self {
        let places = PollSemaphore::new(Arc::new(Semaphore::new(CONNECTIONS_MAX)));
        Self {
            listener,
            places,
            place: None,
        }
    }
}

impl Stream for Connections {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.place.is_none() {
            self.place = ready!(self.places.poll_acquire(cx));
        }
        let accepted = ready!(self.listener.poll_accept(cx));
        let place = self.place.take();
        Poll::Ready(Some(accepted.map(|(stream, _)| Connection {
            stream,
            _place: place,
        })))
    }
}

/// A connection that holds its place while it lives.
pub(crate) struct Connection {
    stream: UnixStream,
    _place: Option<OwnedSemaphorePermit>,
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) -> Self::ConnectInfo {}
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
