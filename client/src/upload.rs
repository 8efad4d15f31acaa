//! Request streams that send a reader's bytes: standard input, an image archive.
//!
//! A reader that fails must not look like one that ended: the daemon would take the part for the whole. So the stream
//! then stays open and silent, and whoever waits for the answer learns of the failure through [`UploadFailure`] and
//! drops the call.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_core::Stream;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::oneshot;
use tonic::{Response, Status};

use crate::error::{Error, Result};

/// Bytes per message: large enough that the cost per message does not matter, well below the server's 1 MiB.
const CHUNK_BYTES: usize = 256 << 10;

pub(crate) type Reader = Pin<Box<dyn AsyncRead + Send>>;

/// A first message, then the reader's bytes, then the end.
pub(crate) struct Upload<M> {
    first: Option<M>,
    reader: Option<Reader>,
    buffer: Vec<u8>,
    wrap: fn(Bytes) -> M,
    failed: Option<oneshot::Sender<io::Error>>,
}

/// Resolves if the reader failed.
pub(crate) struct UploadFailure(Option<oneshot::Receiver<io::Error>>);

impl<M> Upload<M> {
    /// `reader` is `None` where there is nothing to send after the first message.
    pub(crate) fn new(
        first: M,
        reader: Option<Reader>,
        wrap: fn(Bytes) -> M,
    ) -> (Self, UploadFailure) {
        let (failed, failure) = oneshot::channel();
        let buffer = vec![0; if reader.is_some() { CHUNK_BYTES } else { 0 }];
        let upload = Self {
            first: Some(first),
            reader,
            buffer,
            wrap,
            failed: Some(failed),
        };
        (upload, UploadFailure(Some(failure)))
    }

    fn poll_reader(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let Some(reader) = &mut self.reader else {
            return Poll::Ready(None);
        };
        let mut buffer = ReadBuf::new(&mut self.buffer);
        Poll::Ready(
            match std::task::ready!(reader.as_mut().poll_read(cx, &mut buffer)) {
                Err(error) => Some(Err(error)),
                Ok(()) if buffer.filled().is_empty() => None,
                Ok(()) => Some(Ok(Bytes::copy_from_slice(buffer.filled()))),
            },
        )
    }
}

// No field is pinned in place: the reader has its own box.
impl<M> Unpin for Upload<M> {}

impl<M> Stream for Upload<M> {
    type Item = M;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<M>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(first));
        }
        if self.failed.is_none() {
            return Poll::Pending;
        }
        match std::task::ready!(self.poll_reader(cx)) {
            Some(Ok(bytes)) => Poll::Ready(Some((self.wrap)(bytes))),
            None => {
                self.reader = None;
                Poll::Ready(None)
            }
            Some(Err(error)) => {
                if let Some(failed) = self.failed.take() {
                    // The other side is gone only if the call is, and then nobody asks.
                    let _ = failed.send(error);
                }
                Poll::Pending
            }
        }
    }
}

impl UploadFailure {
    /// Of a call that sends nothing.
    pub(crate) fn never() -> Self {
        Self(None)
    }

    /// Waits for a call to be taken up, which the other side may do only once it has all of the bytes.
    pub(crate) async fn or_response<T>(
        &mut self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T> {
        self.or(async { Ok(call.await?.into_inner()) }).await
    }

    /// The same for what a call leads to.
    pub(crate) async fn or<T>(&mut self, wanted: impl Future<Output = Result<T>>) -> Result<T> {
        let mut wanted = pin!(wanted);
        poll_fn(|cx| match self.poll(cx) {
            Poll::Ready(error) => Poll::Ready(Err(Error::Upload(error))),
            Poll::Pending => wanted.as_mut().poll(cx),
        })
        .await
    }

    /// Ready once the reader failed; pending for ever if it ended well.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let Some(failure) = &mut self.0 else {
            return Poll::Pending;
        };
        match std::task::ready!(Pin::new(failure).poll(cx)) {
            Ok(error) => {
                self.0 = None;
                Poll::Ready(error)
            }
            Err(_) => {
                self.0 = None;
                Poll::Pending
            }
        }
    }
}
