//! From a command's pipe to its log, by splice(2): no byte is ever only in our memory.
//!
//! The pipe's readiness is watched on the reactor; moving bytes blocks and is done in bursts on a blocking thread. A
//! stream without output needs neither a thread nor a file. The command is held up only by a reader that follows the
//! stream and makes progress (see `log::Follower`).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SpliceFFlags, fcntl, splice};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, SetOnce};

use super::log::{StreamLog, errno_of};
use super::movers;
use super::spool::Spool;
use super::turns::Turns;
use crate::fault;
use crate::reactor;

/// Most bytes of one splice, and the size to which a busy pipe is enlarged.
pub(super) const PIPE_LARGE: usize = 1 << 20;
/// A pipe's size as the kernel makes it. A burst that has moved this much is of a stream in full flow.
const PIPE_DEFAULT: u64 = 64 << 10;
/// How long a burst of a stream in full flow waits for more, in milliseconds: a way over the reactor and to another
/// thread takes longer than the writer takes to fill the pipe again.
const FLOW_WAIT_MS: u8 = 1;
/// How long a burst may take. In flow it moves what a follower leaves in a few milliseconds; a writer that drips would keep its
/// turn for an hour.
const BURST_LONGEST: Duration = Duration::from_millis(20);

/// Where a stream's bytes go.
pub(super) enum Sink {
    /// Straight into the log.
    Plain(Arc<StreamLog>),
    /// Through a spool in memory and a mask.
    Masked(Box<Spool>),
}

/// Why a burst stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stopped {
    /// The pipe was empty.
    Empty,
    /// Nobody can write to the pipe any more, and it is empty.
    Closed,
    /// The budget or the time was used up.
    Spent,
}

/// What a pipe looks like now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pipe {
    Data,
    Empty,
    Closed,
}

/// Moves one stream of a run from its pipe to its log until the pipe closes.
pub(super) struct Pump {
    pipe: Arc<AsyncFd<OwnedFd>>,
    log: Arc<StreamLog>,
    sink: Option<Sink>,
    size: PipeSize,
    control: Arc<Control>,
    turns: Turns,
}

/// Whether the pipe was enlarged already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PipeSize {
    Default,
    Large,
}

/// What the run's task tells a pump, and hears from it.
#[derive(Default)]
pub(super) struct Control {
    /// The command has ended: what is in the pipe is wanted at once, whoever follows.
    ended: AtomicBool,
    /// Nothing more is wanted, though the pipe may be open.
    closed: AtomicBool,
    told: Notify,
    /// All that was in the pipe when the command ended is in the log.
    drained: SetOnce<()>,
}

impl Control {
    /// The command has ended.
    pub(super) fn command_ended(&self) {
        self.ended.store(true, Ordering::Release);
        self.told.notify_one();
    }

    /// What is in the pipe by now is all that is wanted.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.told.notify_one();
    }

    /// Waits until all that the command had written is in the log.
    pub(super) async fn drained(&self) {
        self.drained.wait().await;
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

impl Pump {
    /// A pump for the read end of a command's pipe, that takes turns of its sandbox. Needs the runtime's reactor.
    pub(super) fn new(
        pipe: OwnedFd,
        log: Arc<StreamLog>,
        sink: Sink,
        turns: &Turns,
    ) -> io::Result<Self> {
        Ok(Self {
            // tokio's own pipe type cannot be told that a splice found it empty.
            pipe: Arc::new(reactor::register(pipe, Interest::READABLE)?),
            log,
            sink: Some(sink),
            size: PipeSize::Default,
            control: Arc::default(),
            turns: turns.clone(),
        })
    }

    /// The other end of its control.
    pub(super) fn control(&self) -> Arc<Control> {
        Arc::clone(&self.control)
    }

    /// Pumps until the pipe is closed, then seals the log.
    pub(super) async fn run(mut self) {
        let pumped = self.pump().await;
        if let Err(error) = pumped.and(self.finish().await) {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "output of a run cannot be read"
            );
            // What is still in the pipe is lost to the log: the result has to say so.
            self.log.lose(errno_of(&error));
            self.throw_away().await;
        }
        // Its readers wait for nothing more.
        self.log.seal();
        let _ = self.control.drained.set(());
    }

    /// Counts what follows and throws it away: the holder keeps the pipe open, and a command that nobody reads from would
    /// stand still until its deadline.
    async fn throw_away(&mut self) {
        self.sink = Some(Sink::Plain(Arc::clone(&self.log)));
        if let Err(error) = self.pump().await {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "output of a run cannot be thrown away"
            );
        }
    }

    async fn pump(&mut self) -> io::Result<()> {
        let pipe = Arc::clone(&self.pipe);
        let control = Arc::clone(&self.control);
        // Bytes moved since the command ended: a survivor may go on for ever, what the command wrote is at most a pipe.
        let mut moved_since_end = 0;
        loop {
            if control.is_closed() {
                return self.take_rest().await;
            }
            let mut ready = tokio::select! {
                ready = pipe.readable() => ready?,
                () = control.told.notified() => {
                    if look(&pipe)? == Pipe::Empty {
                        let _ = control.drained.set(());
                    }
                    continue;
                }
            };
            // Without a writer once is closed for good, even if somebody inside opens the pipe anew: readiness would
            // stay set, and we would spin.
            let closed = ready.ready().is_read_closed();
            let (stopped, ended) = match look(&pipe)? {
                Pipe::Closed => return Ok(()),
                Pipe::Empty => (Stopped::Empty, control.has_ended()),
                Pipe::Data => {
                    let budget = self.budget().await;
                    // Asked before the burst: "empty" must have been seen after the end to mean drained.
                    let ended = control.has_ended();
                    let before = self.log.len();
                    let stopped = self.burst(budget).await?;
                    moved_since_end += if ended { self.log.len() - before } else { 0 };
                    (stopped, ended)
                }
            };
            match stopped {
                Stopped::Closed => return Ok(()),
                Stopped::Empty if closed => return Ok(()),
                Stopped::Empty => ready.clear_ready(),
                Stopped::Spent => {}
            }
            if ended && (stopped == Stopped::Empty || moved_since_end >= PIPE_LARGE as u64) {
                let _ = control.drained.set(());
            }
        }
    }

    /// Takes what is in the pipe: at most what a pipe holds, since whoever still has it may go on writing.
    async fn take_rest(&mut self) -> io::Result<()> {
        if look(&self.pipe)? == Pipe::Data {
            self.burst(PIPE_LARGE as u64).await?;
        }
        Ok(())
    }

    /// How many bytes the next burst may move: what followers leave, and always something once the command has ended.
    async fn budget(&self) -> u64 {
        if self.control.has_ended() {
            return PIPE_LARGE as u64;
        }
        tokio::select! {
            bytes = self.log.wait_headroom() => bytes,
            () = self.control.told.notified() => PIPE_LARGE as u64,
        }
    }

    async fn burst(&mut self, budget: u64) -> io::Result<Stopped> {
        let turn = self.turns.take().await?;
        let mut sink = self.sink.take().expect("a burst puts the sink back");
        let pipe = Arc::clone(&self.pipe);
        let mut size = self.size;
        let task = movers::spawn(move || {
            let _turn = turn;
            let stopped = sink.burst(&pipe, budget, &mut size);
            (sink, size, stopped)
        });
        let (sink, size, stopped) = task.await.map_err(io::Error::other)?;
        self.sink = Some(sink);
        self.size = size;
        Ok(stopped?)
    }

    /// Writes what a mask held back.
    async fn finish(&mut self) -> io::Result<()> {
        match self.sink.take() {
            Some(Sink::Masked(spool)) if !spool.is_untouched() => {
                let task = tokio::task::spawn_blocking(move || spool.finish());
                task.await.map_err(io::Error::other)
            }
            _ => Ok(()),
        }
    }
}

impl Sink {
    /// Moves bytes until the pipe is empty or closed, `budget` bytes were moved, or it has taken [`BURST_LONGEST`]. Blocks,
    /// but not on the pipe for more than [`FLOW_WAIT_MS`].
    fn burst(
        &mut self,
        pipe: &AsyncFd<OwnedFd>,
        budget: u64,
        size: &mut PipeSize,
    ) -> nix::Result<Stopped> {
        let start = Instant::now();
        let mut left = budget;
        while left > 0 && start.elapsed() < BURST_LONGEST {
            let want = usize::try_from(left).unwrap_or(usize::MAX).min(PIPE_LARGE);
            let moved = match self {
                Self::Plain(log) => splice_to_log(pipe.get_ref(), log, want),
                Self::Masked(spool) => spool.take_from(pipe.get_ref(), want),
            };
            match moved {
                Ok(0) => return Ok(Stopped::Closed),
                Ok(count) => {
                    left = left.saturating_sub(count as u64);
                    if budget - left >= PIPE_DEFAULT && *size == PipeSize::Default {
                        enlarge(pipe.get_ref());
                        *size = PipeSize::Large;
                    }
                }
                Err(Errno::EAGAIN) if budget - left >= PIPE_DEFAULT && flows_on(pipe) => {}
                Err(Errno::EAGAIN) => return Ok(Stopped::Empty),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(Stopped::Spent)
    }
}

/// One splice into the log. Where the log cannot be written the bytes are counted and discarded: the command must
/// not stop for our disk.
fn splice_to_log(pipe: &OwnedFd, log: &StreamLog, want: usize) -> nix::Result<usize> {
    if let Some(file) = log.writable() {
        let mut offset = log.len().cast_signed();
        let spliced = fault::around("log.splice", || {
            splice_once(pipe, &file, Some(&mut offset), want)
        });
        match spliced {
            Ok(count) => {
                log.advance(count as u64);
                return Ok(count);
            }
            Err(errno @ (Errno::EAGAIN | Errno::EINTR)) => return Err(errno),
            Err(errno) => log.lose(errno),
        }
    }
    let count = splice_once(pipe, &*DISCARD, None, want)?;
    log.advance(count as u64);
    Ok(count)
}

/// Takes up to `want` bytes out of a pipe without waiting for them.
pub(super) fn splice_once(
    pipe: &OwnedFd,
    file: &impl AsFd,
    offset: Option<&mut i64>,
    want: usize,
) -> nix::Result<usize> {
    let flags = SpliceFFlags::SPLICE_F_NONBLOCK | SpliceFFlags::SPLICE_F_MOVE;
    splice(pipe, None, file, offset, want, flags)
}

/// Where bytes go that cannot be stored.
static DISCARD: LazyLock<File> = LazyLock::new(|| {
    OpenOptions::new()
        .write(true)
        .open("/dev/null")
        .expect("a host has /dev/null, opened for write by anyone")
});

fn enlarge(pipe: &OwnedFd) {
    // If the kernel will not, the pipe stays as it is; it works all the same.
    let _ = fcntl(pipe, FcntlArg::F_SETPIPE_SZ(1 << 20));
}

/// Whether more comes within [`FLOW_WAIT_MS`], or the pipe is closed.
fn flows_on(pipe: &AsyncFd<OwnedFd>) -> bool {
    let mut fds = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
    matches!(poll(&mut fds, FLOW_WAIT_MS), Ok(ready) if ready > 0)
}

/// Whether a pipe has bytes, or writers. A readable event says neither for sure.
fn look(pipe: &AsyncFd<OwnedFd>) -> io::Result<Pipe> {
    let mut fds = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
    while let Err(errno) = poll(&mut fds, PollTimeout::ZERO) {
        if errno != Errno::EINTR {
            return Err(errno.into());
        }
    }
    let seen = fds[0].revents().unwrap_or(PollFlags::empty());
    Ok(if seen.contains(PollFlags::POLLIN) {
        Pipe::Data
    } else if seen.intersects(PollFlags::POLLHUP | PollFlags::POLLERR) {
        Pipe::Closed
    } else {
        Pipe::Empty
    })
}

#[cfg(test)]
mod tests;
