//! The pipes of a run: which end is whose, and what of them the holder keeps for the next daemon.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use nix::fcntl::OFlag;
use nix::unistd::pipe2;

use super::log::{BUDGET, Stream, StreamLog};
use super::mask::Patterns;
use super::output::{Pump, Sink};
use super::spec::Stdin;
use super::spool::Spool;
use super::stdin::StdinPipe;
use super::turns::Turns;
use crate::holder::FdRole;

/// Bytes that an empty pipe takes without a reader.
const PIPE_TAKES: usize = 64 << 10;

/// One stream of output.
pub(super) struct Outlet {
    pub(super) log: Arc<StreamLog>,
    pub(super) pump: Pump,
    /// The command's end.
    pub(super) theirs: OwnedFd,
    /// Duplicates for the holder.
    pub(super) kept: Vec<(FdRole, OwnedFd)>,
}

/// Standard input.
pub(super) struct Input {
    /// The end that a caller writes to.
    pub(super) ours: Option<StdinPipe>,
    /// The command's end; `None` means /dev/null.
    pub(super) theirs: Option<OwnedFd>,
}

impl Outlet {
    /// Opens a stream of a new run. With `patterns` it is masked.
    pub(super) fn open(
        dir: &Path,
        stream: Stream,
        patterns: Option<&Arc<Patterns>>,
        turns: &Turns,
    ) -> io::Result<Self> {
        let (read, theirs) = pipe2(OFlag::O_CLOEXEC)?;
        let log = Arc::new(StreamLog::new(dir, stream, BUDGET));
        let (read_role, spool_role) = roles(stream);
        let mut kept = vec![(read_role, read.as_fd().try_clone_to_owned()?)];
        let sink = match patterns {
            None => Sink::Plain(Arc::clone(&log)),
            Some(patterns) => {
                let spool = Spool::create(Arc::clone(&log), Arc::clone(patterns))?;
                kept.push((spool_role, spool.duplicate()?));
                Sink::Masked(Box::new(spool))
            }
        };
        let pump = Pump::new(read, Arc::clone(&log), sink, turns)?;
        Ok(Self {
            log,
            pump,
            theirs,
            kept,
        })
    }
}

/// What the holder calls a stream's read end and its spool.
pub(super) fn roles(stream: Stream) -> (FdRole, FdRole) {
    match stream {
        Stream::Stdout => (FdRole::StdoutRead, FdRole::StdoutSpool),
        Stream::Stderr => (FdRole::StderrRead, FdRole::StderrSpool),
    }
}

impl Input {
    /// Opens standard input; bytes that are known already are on their way after that.
    pub(super) fn open(stdin: Stdin) -> io::Result<Self> {
        let bytes = match stdin {
            Stdin::Null => {
                return Ok(Self {
                    ours: None,
                    theirs: None,
                });
            }
            Stdin::Bytes(bytes) => Some(bytes),
            Stdin::Open => None,
        };
        let (theirs, ours) = pipe2(OFlag::O_CLOEXEC)?;
        let ours = match bytes {
            Some(bytes) => {
                feed(ours, bytes)?;
                None
            }
            None => Some(StdinPipe::new(ours)?),
        };
        Ok(Self {
            ours,
            theirs: Some(theirs),
        })
    }
}

/// Writes all of `bytes`, and then the end. What a pipe takes is there before the command starts; more needs a task.
fn feed(pipe: OwnedFd, bytes: Bytes) -> io::Result<()> {
    if bytes.len() <= PIPE_TAKES {
        nix::unistd::write(&pipe, &bytes)?;
        return Ok(());
    }
    let mut pipe = StdinPipe::new(pipe)?;
    tokio::spawn(async move {
        if let Err(error) = pipe.write(&bytes).await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "standard input of a run broke off"
            );
        }
    });
    Ok(())
}
