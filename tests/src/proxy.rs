//! A proxy between a client and a daemon's socket, which a test breaks as a bad network would.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::broadcast;
use tokio::task::JoinHandle;

/// Bytes that it holds of each direction.
const BUFFER: usize = 16 << 10;

/// A proxy. It ends when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    _dir: tempfile::TempDir,
    socket: PathBuf,
    cut: broadcast::Sender<()>,
    connections: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Forwards to this socket. With `silence` it cuts connections on which nothing goes either way for so long.
    pub fn new(upstream: &Path, silence: Option<Duration>) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let socket = dir.path().join("sock");
        let listener = UnixListener::bind(&socket)?;
        let (cut, _) = broadcast::channel(1);
        let connections = Arc::new(AtomicUsize::new(0));
        let accepting = tokio::spawn(accept(
            listener,
            upstream.to_owned(),
            cut.clone(),
            Arc::clone(&connections),
            silence,
        ));
        Ok(Self {
            _dir: dir,
            socket,
            cut,
            connections,
            accepting,
        })
    }

    /// Where clients connect.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// The path of its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Cuts all connections, in the middle of whatever they carry. New ones are taken.
    pub fn cut(&self) {
        // Nobody may be connected.
        let _ = self.cut.send(());
    }

    /// Connections that were made until now.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn accept(
    listener: UnixListener,
    upstream: PathBuf,
    cut: broadcast::Sender<()>,
    connections: Arc<AtomicUsize>,
    silence: Option<Duration>,
) {
    while let Ok((near, _)) = listener.accept().await {
        connections.fetch_add(1, Ordering::SeqCst);
        // Without a daemon it is as if it had hung up.
        let Ok(far) = UnixStream::connect(&upstream).await else {
            continue;
        };
        let mut cut = cut.subscribe();
        tokio::spawn(async move {
            let (near_in, near_out) = near.into_split();
            let (far_in, far_out) = far.into_split();
            let silence = silence.unwrap_or(Duration::from_secs(3600));
            let (spoken, _) = broadcast::channel(1);
            tokio::select! {
                () = forward(near_in, far_out, &spoken) => {}
                () = forward(far_in, near_out, &spoken) => {}
                () = silent(&spoken, silence) => {}
                _ = cut.recv() => {}
            }
        });
    }
}

/// Forwards until either side hangs up.
async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, spoken: &broadcast::Sender<()>) {
    let mut buffer = vec![0; BUFFER];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let _ = spoken.send(());
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// Waits until nothing was said for so long.
async fn silent(spoken: &broadcast::Sender<()>, silence: Duration) {
    let mut hearing = spoken.subscribe();
    while tokio::time::timeout(silence, hearing.recv()).await.is_ok() {}
}
