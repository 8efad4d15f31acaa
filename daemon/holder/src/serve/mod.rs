//! PID 1 serves its sandbox: one loop that reaps children, keeps deadlines and talks to the daemon. It never waits for anybody: a daemon
//! that does not read, or is gone, holds no deadline up.

mod clock;
mod connection;
mod deadline;
mod disk;
mod run;
mod run_table;

pub use disk::ROOM;

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use lodge_kernel::seccomp::Program;
use lodge_kernel::sys::clone::{SingleThreaded, exit_now};
use lodge_kernel::sys::{fd, wait};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl, open};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{SockFlag, accept4};
use nix::sys::stat::Mode;

use crate::launcher::End;
use crate::protocol::MAX_PACKET;
use connection::Connection;
use disk::Disk;
use run_table::RunTable;

pub(crate) use connection::KEPT;
pub(crate) use run::{Ending, Run, wipe};

/// Lowest descriptor number that anything of ours may have: what is below is the standard streams and the two fixed numbers that
/// a command's set-up uses (its script and its status pipe), taken for good so that a received descriptor never lands there.
const FIRST_OWN_FD: i32 = 5;

/// How long no new connection is taken after one could not be, in nanoseconds.
const DEAF_NS: u64 = 100_000_000;

/// How often it is looked whether a sandbox without a daemon is frozen as it was said, in nanoseconds.
const LOOK_NS: u64 = 1_000_000_000;

/// How long the loop waits at most while a run that is being ended may have become empty, in milliseconds.
const ENDING_TICK_MS: u64 = 20;

/// What every run of this sandbox gets.
pub(crate) struct RunSettings {
    /// The small filter on top of the inherited one.
    pub(crate) filter: Program,
    /// Soft RLIMIT_NOFILE.
    pub(crate) open_files: u64,
    /// Whether runs get no_new_privs.
    pub(crate) no_new_privileges: bool,
}

/// PID 1 at work.
pub(crate) struct Holder {
    alone: SingleThreaded,
    settings: RunSettings,
    /// v1 `tasks` of `runs`, one per hierarchy without a leaf per run.
    run_tasks: Vec<OwnedFd>,
    listener: OwnedFd,
    connection: Option<Connection>,
    signals: SignalFd,
    /// Where commands write.
    disk: Disk,
    runs: RunTable,
    /// Until then no new connection is taken: the last one failed.
    deaf_until_ns: u64,
}

impl Holder {
    /// Moves what the holder keeps to numbers of its own and closes everything else that the launcher had open.
    pub(crate) fn take_over(
        alone: SingleThreaded,
        connection: &OwnedFd,
        listener: &OwnedFd,
        launcher: &End,
        run_tasks: &[OwnedFd],
        settings: RunSettings,
    ) -> nix::Result<(Self, End)> {
        let mut keep = vec![connection.as_fd(), listener.as_fd(), launcher.as_fd()];
        keep.extend(run_tasks.iter().map(OwnedFd::as_fd));
        // First out of the way, then down to consecutive numbers: no duplicate may land on one that is still wanted.
        let high: Vec<i32> = keep
            .iter()
            .map(|fd| fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(256)))
            .collect::<nix::Result<_>>()?;
        let high: Vec<OwnedFd> = high
            .into_iter()
            .map(fd::inherit)
            .collect::<nix::Result<_>>()?;
        let null = open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())?;
        for number in 0..FIRST_OWN_FD {
            fd::place(null.as_fd(), number)?;
        }
        let mut next = FIRST_OWN_FD;
        for fd in &high {
            fd::place_cloexec(fd.as_fd(), next)?;
            next += 1;
        }
        // The launcher's own descriptor objects live on in memory that nobody returns to; ours are let go before their numbers are closed.
        high.into_iter().for_each(std::mem::forget);
        std::mem::forget(null);
        fd::close_from(u32::try_from(next).map_err(|_| Errno::EBADF)?)?;
        let mut own = (FIRST_OWN_FD..next).map(fd::inherit);
        let mut take = || own.next().unwrap_or(Err(Errno::EBADF));
        let (connection, listener, launcher) = (take()?, take()?, take()?);
        let run_tasks = own.collect::<nix::Result<_>>()?;
        let holder = Self {
            alone,
            settings,
            run_tasks,
            listener,
            connection: Some(Connection::new(connection)),
            signals: child_signals()?,
            // While nobody else is here: what these paths lead to is ours, and stays what it is.
            disk: Disk::open()?,
            runs: RunTable::new(),
            deaf_until_ns: 0,
        };
        Ok((holder, End::from(launcher)))
    }
}

fn child_signals() -> nix::Result<SignalFd> {
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGCHLD);
    mask.thread_block()?;
    SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
}

/// Serves until the sandbox is killed. Never returns.
pub(crate) fn run(mut holder: Holder) -> ! {
    let mut buffer = vec![0; MAX_PACKET];
    loop {
        let woken = holder.wait();
        if woken.children {
            holder.reap();
        }
        // The time comes before the messages, and deadlines are kept by it: see `deadline`.
        let now = clock::now_ns();
        if woken.message || holder.runs.is_due(now) {
            holder.read_messages(&mut buffer);
        }
        if woken.caller {
            holder.accept();
        }
        if holder.connection.is_none() {
            holder.runs.look_whether_frozen(now);
        }
        holder.runs.keep_deadlines(now);
        holder.report();
        if woken.broken {
            // poll(2) itself fails only where memory is short or our descriptors are gone: without it nothing can be kept.
            exit_now(1);
        }
    }
}

/// Why the loop woke.
#[derive(Default)]
struct Woken {
    children: bool,
    message: bool,
    caller: bool,
    broken: bool,
}

impl Holder {
    fn wait(&self) -> Woken {
        let callers = if self.is_deaf() {
            PollFlags::empty()
        } else {
            PollFlags::POLLIN
        };
        let mut ready = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.listener.as_fd(), callers),
        ];
        if let Some(connection) = &self.connection {
            ready.push(PollFd::new(connection.as_fd(), connection.interest()));
        }
        match poll(&mut ready, self.patience()) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => {
                return Woken {
                    broken: true,
                    ..Woken::default()
                };
            }
        }
        let any = |n: usize| ready.get(n).is_some_and(|fd| fd.any().unwrap_or(true));
        Woken {
            children: any(0),
            caller: any(1),
            message: any(2),
            broken: false,
        }
    }

    fn is_deaf(&self) -> bool {
        clock::now_ns() < self.deaf_until_ns
    }

    /// Until the next deadline, rounded up to a millisecond so that the loop does not spin before it.
    fn patience(&self) -> PollTimeout {
        let hearing = Some(self.deaf_until_ns).filter(|_| self.is_deaf());
        let alone = self.connection.is_none() && self.runs.frozen_since_ns.is_some();
        let look = alone.then(|| clock::now_ns().saturating_add(LOOK_NS));
        let deadline = self.runs.next_deadline_ns().into_iter();
        let Some(due) = deadline.chain(hearing).chain(look).min() else {
            return PollTimeout::NONE;
        };
        let mut ms = due.saturating_sub(clock::now_ns()).div_ceil(1_000_000);
        if self.runs.any_ending() {
            ms = ms.min(ENDING_TICK_MS);
        }
        PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX)
    }

    /// Reaps every child that has ended. Those that are no run's command are orphans that came to PID 1.
    fn reap(&mut self) {
        while let Ok(Some(_)) = self.signals.read_signal() {}
        while let Some(ended) = wait::reap() {
            self.runs.command_ended(ended, clock::now_ns(), &self.disk);
        }
    }

    /// A newer daemon replaces the older one's connection.
    fn accept(&mut self) {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        match accept4(self.listener.as_raw_fd(), flags).and_then(fd::inherit) {
            Ok(socket) => self.connection = Some(Connection::new(socket)),
            // Without room for a descriptor the caller stays in the queue, and would wake us at once again.
            Err(_) => self.deaf_until_ns = clock::now_ns().saturating_add(DEAF_NS),
        }
    }

    fn read_messages(&mut self, buffer: &mut [u8]) {
        while let Some(connection) = &mut self.connection {
            match connection.receive(buffer) {
                Ok(Some((message, fds))) => self.handle(message, fds),
                Ok(None) => return,
                // The daemon is gone, or does not speak our language: the next one will connect.
                Err(_) => self.connection = None,
            }
        }
    }

    /// Tells the daemon what it has not been told yet.
    fn report(&mut self) {
        if let Some(connection) = &mut self.connection {
            let told = self.runs.introduce(connection);
            if told.and_then(|()| self.runs.report(connection)).is_err() {
                self.connection = None;
            }
        }
    }
}
