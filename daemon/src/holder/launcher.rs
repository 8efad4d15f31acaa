//! The launcher process: started before the daemon has threads, asked for each sandbox's start.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lodge_holder::protocol::{Fds, PacketError};
use lodge_kernel::cgroup::LaunchFds;
use lodge_kernel::sys::pidfd;
use lodge_proto::holder::{FdRole, Launch, Launched};
use nix::sys::signal::Signal;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket, socketpair,
};
use tokio::sync::oneshot;

use super::error::HolderError;
use super::packets::Packets;
use super::private_copy;
use crate::sandbox::id::SandboxId;

/// Connections that may wait at a holder's socket: there is one daemon.
const BACKLOG: i32 = 4;

/// The launcher process, before there is a runtime.
#[derive(Debug)]
pub struct LauncherProcess {
    socket: OwnedFd,
    child: Child,
}

impl LauncherProcess {
    /// Runs `lodged launcher`, from a copy of this same binary (in `dir`, if it can) that no sandbox may open, with its end of the socket
    /// as standard input and with an empty environment. To be called while this process has one thread.
    ///
    /// # Errors
    /// Where the process cannot be started.
    pub fn start(dir: &Path) -> Result<Self, HolderError> {
        let program = private_copy::make(dir).map_err(HolderError::os("copy the launcher"))?;
        let (ours, theirs) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )
        .map_err(HolderError::os("make the launcher's socket"))?;
        let child = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()))
            .arg0("lodged")
            .arg("launcher")
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            // Its last words, should it ever have any; a holder's standard streams are /dev/null.
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(HolderError::os("start the launcher"))?;
        Ok(Self {
            socket: ours,
            child,
        })
    }

    /// Hands the socket to the runtime that this is called in.
    ///
    /// # Errors
    /// Where the socket cannot be registered.
    pub fn into_async(self) -> Result<Launcher, HolderError> {
        let packets =
            Packets::new(self.socket).map_err(HolderError::os("watch the launcher's socket"))?;
        let inner = Arc::new(Inner {
            packets,
            waiting: Mutex::default(),
            requests: AtomicU64::new(1),
            pid: self.child.id(),
        });
        tokio::spawn(Arc::clone(&inner).read(self.child));
        Ok(Launcher(inner))
    }
}

/// Handle to the launcher. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Launcher(Arc<Inner>);

type Answer = Result<(i32, OwnedFd), HolderError>;

#[derive(Debug)]
struct Inner {
    packets: Packets,
    /// Who waits for the answer to which request.
    waiting: Mutex<HashMap<u64, oneshot::Sender<Answer>>>,
    requests: AtomicU64,
    pid: u32,
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
    /// Directories of the image's layers, uppermost first (O_PATH).
    pub lowers: Vec<OwnedFd>,
    /// The directory that holds `upper` and `work` (O_PATH).
    pub writable: OwnedFd,
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
    /// The launcher's pid.
    pub fn pid(&self) -> u32 {
        self.0.pid
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

    async fn ask(&self, request: &Launch, fds: &Fds) -> Answer {
        let (tell, told) = oneshot::channel();
        self.0.waiting().insert(request.request, tell);
        let sent = self.0.packets.send(request, &fds.borrowed()).await;
        if let Err(error) = sent {
            self.0.waiting().remove(&request.request);
            return Err(match error {
                PacketError::Closed => HolderError::LauncherGone,
                other => HolderError::Packet(other),
            });
        }
        told.await.unwrap_or(Err(HolderError::LauncherGone))
    }
}

impl Inner {
    fn waiting(&self) -> std::sync::MutexGuard<'_, HashMap<u64, oneshot::Sender<Answer>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands answers to those who wait, until the launcher is gone.
    async fn read(self: Arc<Self>, mut child: Child) {
        while let Ok((launched, fds)) = self.packets.receive::<Launched>().await {
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
        tracing::error!(
            pid = self.pid,
            "the launcher process is gone: no sandbox can be started until lodged is restarted"
        );
        self.waiting().clear();
        let _ = child.try_wait();
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

fn request(number: u64, spec: LaunchSpec, listener: OwnedFd, connection: OwnedFd) -> (Launch, Fds) {
    let mut fds = Fds::default();
    let mut add = |role, list: Vec<OwnedFd>| list.into_iter().for_each(|fd| fds.push(role, fd));
    add(FdRole::Lower, spec.lowers);
    add(FdRole::Writable, vec![spec.writable]);
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
        fds: fds.roles(),
    };
    (launch, fds)
}

/// Binds the socket on which the next daemon finds the holder. A stale one of an earlier start is replaced: the caller holds the state
/// directory's lock, and knows that this sandbox has no holder.
fn listen_at(path: &Path) -> Result<OwnedFd, HolderError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(HolderError::os("remove the holder's old socket")(error));
        }
        _ => {}
    }
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
        .map_err(HolderError::os("make the holder's socket"))?;
    let address = UnixAddr::new(path).map_err(HolderError::os("name the holder's socket"))?;
    bind(listener.as_raw_fd(), &address).map_err(HolderError::os("bind the holder's socket"))?;
    let backlog =
        Backlog::new(BACKLOG).map_err(HolderError::os("listen on the holder's socket"))?;
    listen(&listener, backlog).map_err(HolderError::os("listen on the holder's socket"))?;
    Ok(listener)
}
