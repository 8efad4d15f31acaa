//! /dev: a fresh tmpfs with the host's harmless device nodes, a devpts of its own, /dev/shm and /dev/mqueue.

use std::ffi::CStr;
use std::os::fd::AsFd as _;

use lodge_kernel::mount::{Depth, FsContext, attach, attr, clone_mount, tmpfs};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::stat::{Mode, fstat, major, minor, mkdirat};
use nix::unistd::symlinkat;

use super::Making;
use super::tree::open_below;
use crate::protocol::{Cause, on};

/// Size of /dev itself, in bytes: it holds names only.
const DEV_BYTES: u64 = 64 * 1024;

/// Terminals that a sandbox may have open at once.
const MAX_TERMINALS: &CStr = c"256";

/// Device nodes taken over from the host: (name, path there, major, minor). The numbers are checked, so that a host whose node was
/// replaced gives nothing away.
const NODES: &[(&CStr, &CStr, u64, u64)] = &[
    (c"null", c"/dev/null", 1, 3),
    (c"zero", c"/dev/zero", 1, 5),
    (c"full", c"/dev/full", 1, 7),
    (c"random", c"/dev/random", 1, 8),
    (c"urandom", c"/dev/urandom", 1, 9),
    (c"tty", c"/dev/tty", 5, 0),
];

/// Names that programs expect: (link, target).
const LINKS: &[(&str, &str)] = &[
    ("/proc/self/fd", "fd"),
    ("/proc/self/fd/0", "stdin"),
    ("/proc/self/fd/1", "stdout"),
    ("/proc/self/fd/2", "stderr"),
    ("pts/ptmx", "ptmx"),
];

/// Mounts the tmpfs on /dev.
pub(super) fn dev(making: &mut Making<'_>) -> Result<(), Cause> {
    let dev = tmpfs(DEV_BYTES, 0o755, attr::NOSUID | attr::NOEXEC).map_err(on("/dev"))?;
    for dir in [c"pts", c"shm", c"mqueue"] {
        mkdirat(&dev, dir, Mode::from_bits_truncate(0o755)).map_err(on(dir.to_string_lossy()))?;
    }
    for (target, link) in LINKS {
        symlinkat(*target, &dev, *link).map_err(on(*link))?;
    }
    attach(dev.as_fd(), making.root()?, c"dev").map_err(on("/dev"))
}

/// Binds the host's device nodes, each checked to be the device that it should be.
pub(super) fn nodes(making: &mut Making<'_>) -> Result<(), Cause> {
    let dev = open_dev(making)?;
    for (name, host_path, major_number, minor_number) in NODES {
        let object = || on(host_path.to_string_lossy());
        let node = clone_mount(AT_FDCWD, host_path, Depth::One).map_err(object())?;
        let device = fstat(&node).map_err(object())?.st_rdev;
        if (major(device), minor(device)) != (*major_number, *minor_number) {
            return Err(object()(Errno::ENODEV));
        }
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        openat(dev.as_fd(), *name, flags, Mode::from_bits_truncate(0o666)).map_err(object())?;
        attach(node.as_fd(), dev.as_fd(), name).map_err(object())?;
    }
    Ok(())
}

/// Mounts a devpts instance of its own: no terminal of the host or of another sandbox is in it.
pub(super) fn pts(making: &mut Making<'_>) -> Result<(), Cause> {
    let context = FsContext::open(c"devpts").map_err(on("devpts"))?;
    for (key, value) in [
        (c"ptmxmode", c"0666"),
        (c"mode", c"0620"),
        (c"max", MAX_TERMINALS),
    ] {
        context.set(key, value).map_err(on("devpts"))?;
    }
    let pts = context
        .mount(attr::NOSUID | attr::NOEXEC)
        .map_err(on("devpts"))?;
    attach(pts.as_fd(), open_dev(making)?.as_fd(), c"pts").map_err(on("/dev/pts"))
}

/// Mounts /dev/shm, of the size that was asked for.
pub(super) fn shm(making: &mut Making<'_>) -> Result<(), Cause> {
    let size = making.init.request.shm_bytes;
    let shm = tmpfs(size, 0o1777, attr::NOSUID | attr::NODEV).map_err(on("/dev/shm"))?;
    attach(shm.as_fd(), open_dev(making)?.as_fd(), c"shm").map_err(on("/dev/shm"))
}

/// Mounts the message queues of this ipc namespace.
pub(super) fn mqueue(making: &mut Making<'_>) -> Result<(), Cause> {
    let context = FsContext::open(c"mqueue").map_err(on("mqueue"))?;
    let queue = context
        .mount(attr::NOSUID | attr::NODEV | attr::NOEXEC)
        .map_err(on("mqueue"))?;
    attach(queue.as_fd(), open_dev(making)?.as_fd(), c"mqueue").map_err(on("/dev/mqueue"))
}

fn open_dev(making: &Making<'_>) -> Result<std::os::fd::OwnedFd, Cause> {
    open_below(making.root()?, "dev", OFlag::O_PATH | OFlag::O_DIRECTORY).map_err(on("/dev"))
}
