//! The launcher process: `lodged launcher`, started before the daemon has threads. It forks holders and reaps them; it
//! never sees an environment, a command or a secret.

mod intermediate;
mod launch;
mod ordinary;
mod rendezvous;

pub(crate) use rendezvous::{End, Said};

use std::os::fd::{AsFd as _, OwnedFd};

use lodge_kernel::identity::hide_memory;
use lodge_kernel::seccomp::{self, Program};
use lodge_kernel::sys::clone::{SingleThreaded, default_signals};
use lodge_kernel::sys::packet::Wait;
use lodge_kernel::sys::wait;
use lodge_proto::holder::{FdRole, Launch, Launched};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::protocol::{self, Fds, MAX_PACKET, PacketError};

/// Name of the launcher in process lists.
const COMM: &std::ffi::CStr = c"lodge-launcher";

/// Errors of the socket after which the next request may do: nothing there, too long, no room for its descriptors now.
const PASSING: &[Errno] = &[
    Errno::EAGAIN,
    Errno::EMSGSIZE,
    Errno::ENOBUFS,
    Errno::ENOMEM,
];

/// Why the launcher could not serve.
#[derive(Debug, thiserror::Error)]
pub enum LauncherError {
    /// It must be able to fork safely.
    #[error("the launcher has more than one thread")]
    Threads,
    /// A call of its set-up failed.
    #[error("cannot {what}")]
    SetUp {
        /// What it was doing.
        what: &'static str,
        /// The kernel's word.
        source: Errno,
    },
}

/// What every launch needs and that is made once: forked holders share its memory.
struct Launcher {
    alone: SingleThreaded,
    base_filter: Program,
    run_filter: Program,
}

/// Serves launches until lodged closes the socket; then its holders go on without it.
///
/// # Errors
/// See [`LauncherError`]; a failed launch is an answer, not an error.
pub fn run(socket: OwnedFd) -> Result<(), LauncherError> {
    let alone = SingleThreaded::check().ok_or(LauncherError::Threads)?;
    let set_up = |what| move |source| LauncherError::SetUp { what, source };
    // Before anything is forked: a holder is non-dumpable from its first instruction, and orphans come to us.
    hide_memory().map_err(set_up("make itself non-dumpable"))?;
    prctl::set_name(COMM).map_err(set_up("name itself"))?;
    prctl::set_child_subreaper(true).map_err(set_up("become a subreaper"))?;
    default_signals().map_err(set_up("reset signals"))?;
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGCHLD);
    // The terminal's Ctrl-C is lodged's business: it closes our socket when it is done.
    mask.add(Signal::SIGINT);
    mask.add(Signal::SIGTERM);
    mask.thread_block().map_err(set_up("block signals"))?;
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    let signals = SignalFd::with_flags(&mask, flags).map_err(set_up("watch its children"))?;
    let launcher = Launcher {
        alone,
        base_filter: seccomp::base_program(),
        run_filter: seccomp::run_program(),
    };
    launcher
        .serve(&socket, &signals)
        .map_err(set_up("wait for requests"))
}

impl Launcher {
    fn serve(&self, socket: &OwnedFd, signals: &SignalFd) -> nix::Result<()> {
        let mut buffer = vec![0; MAX_PACKET];
        loop {
            let mut ready = [
                PollFd::new(socket.as_fd(), PollFlags::POLLIN),
                PollFd::new(signals.as_fd(), PollFlags::POLLIN),
            ];
            match poll(&mut ready, PollTimeout::NONE) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
            if ready[1].any().unwrap_or(true) {
                while let Ok(Some(_)) = signals.read_signal() {}
                while wait::reap().is_some() {}
            }
            if ready[0].any().unwrap_or(true) {
                match self.answer(socket, &mut buffer) {
                    Err(PacketError::Closed) => return Ok(()),
                    Err(PacketError::Socket(errno)) if !PASSING.contains(&errno) => {
                        return Err(errno);
                    }
                    // A request that cannot be read is answered by lodged's own patience; the next one may be better.
                    Ok(()) | Err(_) => {}
                }
            }
        }
    }

    /// Reads one request and answers it.
    fn answer(&self, socket: &OwnedFd, buffer: &mut [u8]) -> Result<(), PacketError> {
        let (request, fds) = protocol::receive::<Launch>(socket.as_fd(), buffer, Wait::No)?;
        let mut answer = Launched {
            request: request.request,
            ..Launched::default()
        };
        let made = Fds::pair(&request.fds, fds)
            .map_err(|_| launch::missing("descriptors"))
            .and_then(|fds| launch::launch(self, request, fds));
        match made {
            Ok((pid, pidfd)) => {
                answer.pid = pid;
                answer.fds = vec![FdRole::Pidfd as i32];
                protocol::send(socket.as_fd(), &answer, &[pidfd.as_fd()], Wait::Yes)
            }
            Err(error) => {
                answer.failure = Some(error);
                protocol::send(socket.as_fd(), &answer, &[], Wait::Yes)
            }
        }
    }
}
