//! The launcher process: started with the daemon, and again whenever it dies; asked for each sandbox's start.

mod keeper; // starts another one when it is gone
mod line; // requests and answers
mod process; // how it is executed

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lodge_holder::protocol::Fds;
use lodge_kernel::cgroup::LaunchFds;
use lodge_proto::holder::{FdRole, Launch};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use tokio::sync::watch;
use tokio::time::timeout;

use self::keeper::Current;
use self::line::{Answer, Line, Unasked};
use self::process::{Program, Spawned};
use super::error::HolderError;
use super::sockets::listen_at;
use crate::sandbox::id::SandboxId;
use crate::storage::{Root, Writable};

/// How long a start waits for a launcher where there is none. Another one takes a few milliseconds, unless they keep dying.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a start asks the next launcher because the one before was gone when it was asked.
const ATTEMPTS: usize = 3;

/// The launcher process, before there is a runtime.
#[derive(Debug)]
pub struct LauncherProcess {
    program: Program,
    socket: OwnedFd,
    child: Child,
}

impl LauncherProcess {
    /// Runs `lodged launcher`, from a copy of this same binary (in `dir`, if it can) that no sandbox may open. To be called before this
    /// process changes its limits: a later launcher gets those of now.
    ///
    /// # Errors
    /// Where the process cannot be started.
    pub fn start(dir: &Path) -> Result<Self, HolderError> {
        let program = Program::copy(dir)?;
        let Spawned { socket, child } = program.spawn()?;
        Ok(Self {
            program,
            socket,
            child,
        })
    }

    /// Hands the socket to the runtime that this is called in, where another launcher is started whenever one dies.
    ///
    /// # Errors
    /// Where the socket cannot be registered.
    pub fn into_async(self) -> Result<Launcher, HolderError> {
        let line = Line::new(self.socket, self.child.id())?;
        let current = Arc::new(Current::new(Some(Arc::new(line))));
        tokio::spawn(keeper::keep(self.program, Arc::clone(&current), self.child));
        Ok(Launcher(Arc::new(Inner {
            current,
            requests: AtomicU64::new(1),
        })))
    }
}

/// Handle to whatever launcher there is. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Launcher(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    current: Arc<Current>,
    requests: AtomicU64,
}

/// Whether runs get no_new_privs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NoNewPrivileges {
    /// Set-user-id programs (sudo) work, within the sandbox's bounding set.
    #[default]
    Off,
    /// They gain nothing.
    On,
}

/// Whether the files of a sandbox can be changed from inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RootAccess {
    /// They can.
    #[default]
    Writable,
    /// They cannot, but for /tmp, which is memory, and /dev/shm.
    ReadOnly,
}

/// What a sandbox is started from.
#[derive(Debug)]
pub struct LaunchSpec {
    /// The sandbox.
    pub id: SandboxId,
    /// First of its 65,536 host ids.
    pub uid_base: u32,
    /// Hostname inside.
    pub hostname: String,
    /// Size of /dev/shm, in bytes.
    pub shm_bytes: u64,
    /// Soft RLIMIT_NOFILE of runs.
    pub open_files: u64,
    /// Contents of /etc/hosts.
    pub etc_hosts: Vec<u8>,
    /// Contents of /etc/resolv.conf.
    pub etc_resolv_conf: Vec<u8>,
    /// Whether runs get no_new_privs.
    pub no_new_privileges: NoNewPrivileges,
    /// Whether its files can be changed.
    pub root_access: RootAccess,
    /// Its root file system.
    pub root: Root,
    /// The sandbox's groups.
    pub cgroup: LaunchFds,
    /// Where the next daemon finds the holder; its directory is root's alone.
    pub socket: PathBuf,
}

/// A holder that was just started.
pub(super) struct Started {
    pub(super) pid: i32,
    pub(super) pidfd: OwnedFd,
    pub(super) connection: OwnedFd,
}

impl Launcher {
    /// The pid of the launcher that is there now, if there is one.
    pub fn pid(&self) -> Option<u32> {
        self.0.current.borrow().as_ref().map(|line| line.pid())
    }

    /// Starts a sandbox's holder; answers when the sandbox is made.
    pub(super) async fn launch(&self, spec: LaunchSpec) -> Result<Started, HolderError> {
        let listener = listen_at(&spec.socket)?;
        let (ours, theirs) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        )
        .map_err(HolderError::os("make the holder's connection"))?;
        let number = self.0.requests.fetch_add(1, Ordering::Relaxed);
        let (request, fds) = request(number, spec, listener, theirs);
        let (pid, pidfd) = self.ask(&request, &fds).await?;
        Ok(Started {
            pid,
            pidfd,
            connection: ours,
        })
    }

    /// Asks whichever launcher is there. One that dies with the request may have begun it: then the caller is told, and undoes it.
    async fn ask(&self, request: &Launch, fds: &Fds) -> Answer {
        for _ in 0..ATTEMPTS {
            let line = self.line().await?;
            match line.ask(request, fds).await {
                Ok(answer) => return answer,
                Err(Unasked::Gone) => self.gone(&line).await,
            }
        }
        Err(HolderError::LauncherGone)
    }

    /// The line to a launcher, as soon as there is one.
    async fn line(&self) -> Result<Arc<Line>, HolderError> {
        let mut current = self.0.current.subscribe();
        let there = timeout(PATIENCE, current.wait_for(Option::is_some)).await;
        match there {
            Ok(Ok(line)) => line.clone().ok_or(HolderError::LauncherGone),
            Ok(Err(_)) | Err(_) => Err(HolderError::LauncherGone),
        }
    }

    /// Waits until everybody knows that this launcher is gone.
    async fn gone(&self, line: &Arc<Line>) {
        let other =
            |now: &Option<Arc<Line>>| !now.as_ref().is_some_and(|now| Arc::ptr_eq(now, line));
        let mut current: watch::Receiver<_> = self.0.current.subscribe();
        // Late, it is asked again, and found gone again.
        let _ = timeout(PATIENCE, current.wait_for(other)).await;
    }
}

fn request(number: u64, spec: LaunchSpec, listener: OwnedFd, connection: OwnedFd) -> (Launch, Fds) {
    let mut fds = Fds::default();
    let mut add = |role, list: Vec<OwnedFd>| list.into_iter().for_each(|fd| fds.push(role, fd));
    match spec.root {
        Root::Overlay { lowers, writable } => {
            add(FdRole::Lower, lowers);
            match writable {
                Writable::Directory(directory) => add(FdRole::Writable, vec![directory]),
                Writable::Mount(mount) => add(FdRole::WritableMount, vec![mount]),
            }
        }
        Root::Whole(directory) => add(FdRole::Writable, vec![directory]),
    }
    add(FdRole::CgroupSandbox, vec![spec.cgroup.sandbox]);
    add(FdRole::CgroupHolder, vec![spec.cgroup.holder]);
    add(FdRole::V1TasksSandbox, spec.cgroup.v1_sandbox);
    add(FdRole::V1TasksHolder, spec.cgroup.v1_holder);
    add(FdRole::V1TasksRuns, spec.cgroup.v1_runs);
    add(FdRole::Listener, vec![listener]);
    add(FdRole::Connection, vec![connection]);
    let launch = Launch {
        request: number,
        uid_base: spec.uid_base,
        hostname: spec.hostname,
        shm_bytes: spec.shm_bytes,
        open_files: spec.open_files,
        etc_hosts: spec.etc_hosts,
        etc_resolv_conf: spec.etc_resolv_conf,
        no_new_privileges: spec.no_new_privileges == NoNewPrivileges::On,
        read_only_root: spec.root_access == RootAccess::ReadOnly,
        fds: fds.roles(),
    };
    (launch, fds)
}
