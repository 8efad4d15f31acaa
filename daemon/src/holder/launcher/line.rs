//! The line to one launcher process: requests go out, answers come back to who asked, until that process is gone.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lodge_holder::protocol::{Fds, PacketError};
use lodge_kernel::sys::pidfd;
use lodge_proto::holder::{FdRole, Launch, Launched};
use nix::sys::signal::Signal;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use crate::holder::error::HolderError;
use crate::holder::packets::Packets;

/// How long a launcher may answer nobody at all. It gives up on a launch after 20 s by itself, so one that is silent for longer is
/// stopped or stuck, and is replaced.
const SILENCE: Duration = Duration::from_secs(25);

/// What a launch gives: the holder's pid and a pidfd of it.
pub(super) type Answer = Result<(i32, OwnedFd), HolderError>;

/// The line to one launcher process.
#[derive(Debug)]
pub(super) struct Line {
    packets: Packets,
    /// Who waits for the answer to which request.
    waiting: Mutex<HashMap<u64, oneshot::Sender<Answer>>>,
    /// Answers that have come.
    answered: AtomicU64,
    /// Somebody has found that it answers nobody.
    stuck: Notify,
    pid: u32,
}

impl Line {
    /// Takes a launcher's socket over; to be called within the runtime.
    pub(super) fn new(socket: OwnedFd, pid: u32) -> Result<Self, HolderError> {
        let packets =
            Packets::new(socket).map_err(HolderError::os("watch the launcher's socket"))?;
        Ok(Self {
            packets,
            waiting: Mutex::default(),
            answered: AtomicU64::new(0),
            stuck: Notify::new(),
            pid,
        })
    }

    /// The process at the other end.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Asks for a launch.
    ///
    /// # Errors
    /// [`Unasked::Gone`] if the request did not reach it, so that another one can be asked.
    pub(super) async fn ask(&self, request: &Launch, fds: &Fds) -> Result<Answer, Unasked> {
        let (tell, told) = oneshot::channel();
        self.waiting().insert(request.request, tell);
        let asked = Asked {
            line: self,
            request: request.request,
        };
        let before = self.answered.load(Ordering::Relaxed);
        if let Err(error) = self.packets.send(request, &fds.borrowed()).await {
            return match error {
                PacketError::Closed => Err(Unasked::Gone),
                other => Ok(Err(HolderError::Packet(other))),
            };
        }
        let answer = timeout(SILENCE, told).await;
        drop(asked);
        Ok(match answer {
            Ok(answer) => answer.unwrap_or(Err(HolderError::LauncherGone)),
            Err(_) => {
                if self.answered.load(Ordering::Relaxed) == before {
                    self.stuck.notify_one();
                }
                Err(HolderError::LauncherGone)
            }
        })
    }

    /// Hands answers to those who wait, until the launcher is gone or answers nobody.
    pub(super) async fn serve(&self) {
        tokio::select! {
            () = self.read() => {}
            () = self.stuck.notified() => {}
        }
        // Those who wait see their sender dropped.
        self.waiting().clear();
    }

    async fn read(&self) {
        while let Ok((launched, fds)) = self.packets.receive::<Launched>().await {
            self.answered.fetch_add(1, Ordering::Relaxed);
            let waiting = self.waiting().remove(&launched.request);
            let unwanted = match waiting {
                Some(waiting) => waiting.send(answer(launched, fds)).err(),
                None => Some(answer(launched, fds)),
            };
            if let Some(Ok((_, pidfd))) = unwanted {
                // Nobody waits any more, so nobody would ever end it.
                let _ = pidfd::send_signal(pidfd.as_fd(), Signal::SIGKILL);
            }
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Answer>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The request did not reach the launcher.
#[derive(Debug)]
pub(super) enum Unasked {
    /// That process is gone.
    Gone,
}

/// A request under way: whoever gives up on it is not waited for any more.
struct Asked<'a> {
    line: &'a Line,
    request: u64,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.line.waiting().remove(&self.request);
    }
}

fn answer(launched: Launched, fds: Vec<OwnedFd>) -> Answer {
    if let Some(failure) = launched.failure {
        return Err(HolderError::Step(failure));
    }
    let mut fds = Fds::pair(&launched.fds, fds)?;
    let pidfd = fds
        .take(FdRole::Pidfd)
        .ok_or(HolderError::Packet(PacketError::Descriptors {
            roles: 1,
            fds: 0,
        }))?;
    Ok((launched.pid, pidfd))
}
