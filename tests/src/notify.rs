//! Readiness by sd_notify's protocol: the daemon sends `READY=1` to the socket named in `NOTIFY_SOCKET`.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// A daemon is ready within this time, also on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(20);
/// Between two looks whether the daemon still lives.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The socket that a daemon reports to.
#[derive(Debug)]
pub struct Notify {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Notify {
    /// Binds the socket in `dir`, in place of an earlier one.
    pub fn bind(dir: &Path) -> Result<Self> {
        let path = dir.join("notify.sock");
        let _ = std::fs::remove_file(&path);
        let socket =
            UnixDatagram::bind(&path).with_context(|| format!("bind {}", path.display()))?;
        socket.set_read_timeout(Some(LOOK_AGAIN))?;
        Ok(Self { socket, path })
    }

    /// For the daemon's `NOTIFY_SOCKET`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until `daemon` says that it is ready; fails if it exits before, or says nothing.
    pub fn wait_ready(&self, daemon: &mut Child) -> Result<()> {
        let start = Instant::now();
        let mut buffer = [0u8; 4096];
        while start.elapsed() < READY_WITHIN {
            match self.socket.recv(&mut buffer) {
                Ok(n) if buffer[..n].split(|b| *b == b'\n').any(|l| l == b"READY=1") => {
                    return Ok(());
                }
                Ok(_) => {}
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(e) => return Err(e).context("receive on the notify socket"),
            }
            if let Some(status) = daemon.try_wait().context("look at the daemon")? {
                bail!("the daemon ended before it was ready: {status}");
            }
        }
        bail!("the daemon was not ready within {READY_WITHIN:?}")
    }
}
