//! A mount namespace of the daemon's own, so that what it mounts is in nobody's way and goes with it, however it ends.

use std::io;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Gives this process mounts of its own. What the host mounts and unmounts from now on still comes in; nothing goes out.
/// To be called before there is a second thread, which would keep the host's, and before the launcher is started: holders
/// get the mounts of its namespace, and descriptors of mounts serve only in the namespace that has them.
///
/// # Errors
/// EPERM without CAP_SYS_ADMIN.
pub fn make_private() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let none: Option<&str> = None;
    // Slave and not private: a host that unmounts a disk is not to find it busy because of a daemon.
    mount(none, "/", none, MsFlags::MS_SLAVE | MsFlags::MS_REC, none)?;
    Ok(())
}
