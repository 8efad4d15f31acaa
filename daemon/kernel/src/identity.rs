//! Who a sandbox is on the host: a uid of its own with a range of ids below it, and the maps that join the two.
//!
//! The user namespace is made *by that uid*, so that the kernel's per-user quotas (inotify instances, what RLIMIT_* become)
//! hit that sandbox alone: made by root, 128 inotify handles of one sandbox starve every other one and host root.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};

use nix::fcntl::{OFlag, openat};
use nix::sys::prctl;
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

use crate::protection::Protection;
use crate::sys::capability;

/// Ids of one sandbox: the kernel's 16-bit ids, which is what images use.
pub const IDS: u32 = 65_536;

/// linux/capability.h.
const CAP_SETPCAP: u64 = 1 << 8;
const CAP_SETUID: u64 = 1 << 7;
const CAP_SETGID: u64 = 1 << 6;
const CAP_SYS_ADMIN: u64 = 1 << 21;

/// Becomes host uid and gid `base`, with no groups, keeping what a distribution that restricts user namespaces asks for.
///
/// # Errors
/// The kernel's.
pub fn become_owner(base: u32) -> nix::Result<()> {
    setgroups(&[])?;
    prctl::set_keepcaps(true)?;
    let (uid, gid) = (Uid::from_raw(base), Gid::from_raw(base));
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)?;
    prctl::set_keepcaps(false)?;
    // The change of uid emptied the effective set; AppArmor's and other restrictions look at CAP_SYS_ADMIN there.
    capability::set(CAP_SYS_ADMIN | CAP_SETPCAP | CAP_SETUID | CAP_SETGID)
}

/// Keeps this process's memory, descriptors and environment from everyone inside, root of the sandbox too. To be called again after
/// each change of uid: where fs.suid_dumpable says so, that gives them back.
///
/// # Errors
/// The kernel's.
pub fn hide_memory() -> nix::Result<()> {
    prctl::set_dumpable(Protection::NonDumpable.is_off())
}

/// The directory of a process in /proc, opened: a later use of a reused pid fails instead of meaning another process.
#[derive(Debug)]
pub struct ProcDir(OwnedFd);

impl ProcDir {
    /// Opens `/proc/<pid>`. The caller must not have reaped the process yet.
    ///
    /// # Errors
    /// ENOENT if there is no such process.
    pub fn open(pid: i32) -> nix::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        nix::fcntl::open(format!("/proc/{pid}").as_str(), flags, Mode::empty()).map(Self)
    }

    /// Maps ids 0..65,536 of the process's new user namespace to `base` and up on the host.
    ///
    /// # Errors
    /// EPERM if the maps are written already.
    pub fn map_ids(&self, base: u32) -> std::io::Result<()> {
        let map = format!("0 {base} {IDS}\n");
        self.write("uid_map", &map)?;
        self.write("gid_map", &map)
    }

    /// The process's user namespace.
    ///
    /// # Errors
    /// The kernel's.
    pub fn user_namespace(&self) -> nix::Result<OwnedFd> {
        openat(
            self.0.as_fd(),
            "ns/user",
            OFlag::O_RDONLY | OFlag::O_CLOEXEC,
            Mode::empty(),
        )
    }

    fn write(&self, name: &str, text: &str) -> std::io::Result<()> {
        let fd = openat(
            self.0.as_fd(),
            name,
            OFlag::O_WRONLY | OFlag::O_CLOEXEC,
            Mode::empty(),
        )?;
        File::from(fd).write_all(text.as_bytes())
    }
}
