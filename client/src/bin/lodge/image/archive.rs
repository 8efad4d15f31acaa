//! Where an archive's bytes come from, and whether they all came: what a producer that failed wrote must not be taken
//! for a whole archive.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

type Verdict = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

/// Reads what a producer writes. At its end the producer is asked whether that was all; if it failed, so does the read.
pub(super) struct Archive<R> {
    reader: R,
    verdict: Option<Verdict>,
}

impl<R> Archive<R> {
    /// `verdict` is polled once the reader has ended.
    pub(super) fn new(
        reader: R,
        verdict: impl Future<Output = io::Result<()>> + Send + 'static,
    ) -> Self {
        Self {
            reader,
            verdict: Some(Box::pin(verdict)),
        }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Archive<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.reader).poll_read(cx, buffer))?;
        if buffer.filled().len() > before {
            return Poll::Ready(Ok(()));
        }
        let Some(verdict) = &mut self.verdict else {
            return Poll::Ready(Ok(()));
        };
        let result = ready!(verdict.as_mut().poll(cx));
        self.verdict = None;
        Poll::Ready(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt as _;

    #[tokio::test]
    async fn the_end_is_an_error_if_the_producer_failed() {
        let mut bytes = Vec::new();
        let mut good = Archive::new(&b"all"[..], async { Ok(()) });
        assert_eq!(good.read_to_end(&mut bytes).await.unwrap(), 3);
        let mut bad = Archive::new(&b"part"[..], async { Err(io::Error::other("no")) });
        assert!(bad.read_to_end(&mut bytes).await.is_err());
    }
}
