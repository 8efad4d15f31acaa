//! /proc and /sys: fresh, of this sandbox's namespaces, with what concerns the whole machine read-only or masked.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use lodge_kernel::mount::{Depth, FsContext, attach, attr, clone_mount, set_attrs, tmpfs};
use lodge_kernel::protection::Protection;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{SFlag, fstat};

use super::Making;
use super::tree::open_below;
use crate::protocol::{Cause, errno_of, on};

const STRICT: u64 = attr::NOSUID | attr::NODEV | attr::NOEXEC;

/// Kinds of namespaces of which a sandbox may make none: the second lock behind the seccomp filter.
const NAMESPACE_QUOTAS: &[&str] = &["cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"];

/// Settings of the whole machine, read-only: /proc/sys is also written to by host tools, sysrq-trigger reboots.
const READ_ONLY: &[&str] = &[
    "proc/bus",
    "proc/fs",
    "proc/irq",
    "proc/sys",
    "proc/sysrq-trigger",
];

/// What tells of the host or reaches into it. Directories become an empty, read-only one, files become /dev/null. Docker's list, then ours.
const MASKED: &[&str] = &[
    "proc/acpi",
    "proc/asound",
    "proc/interrupts",
    "proc/kcore",
    "proc/keys",
    "proc/latency_stats",
    "proc/sched_debug",
    "proc/scsi",
    "proc/timer_list",
    "proc/timer_stats",
    "sys/firmware",
    "sys/devices/virtual/powercap",
    // Kernel addresses, physical memory and configuration; other file systems that show the kernel's insides.
    "proc/config.gz",
    "proc/kallsyms",
    "proc/kmsg",
    "proc/kpagecgroup",
    "proc/kpagecount",
    "proc/kpageflags",
    "proc/mdstat",
    "proc/mtrr",
    "proc/slabinfo",
    "proc/vmallocinfo",
    "sys/fs/bpf",
    // Load of the whole host, with thresholds that anybody may set; its disks, and paths of its swap files; its users' keys.
    "proc/diskstats",
    "proc/key-users",
    "proc/partitions",
    "proc/pressure",
    "proc/swaps",
    // Of every file system and loop device of the host: which file it is in, with ids of other sandboxes, and what each of those has.
    "sys/devices/virtual/block",
    "sys/fs/btrfs",
    "sys/fs/ext4",
    "sys/kernel/debug",
    "sys/kernel/mm/ksm",
    "sys/kernel/security",
    "sys/kernel/tracing",
];

/// Mounts a /proc of this pid namespace.
pub(super) fn proc(making: &mut Making<'_>) -> Result<(), Cause> {
    mount_fresh(making, c"proc", 0)
}

/// Mounts a read-only /sys of this network namespace.
pub(super) fn sys(making: &mut Making<'_>) -> Result<(), Cause> {
    mount_fresh(making, c"sysfs", attr::RDONLY)
}

fn mount_fresh(making: &Making<'_>, fs_type: &std::ffi::CStr, attrs: u64) -> Result<(), Cause> {
    let name = if fs_type == c"proc" { "proc" } else { "sys" };
    let context = FsContext::open(fs_type).map_err(on(name))?;
    let fs = context.mount(STRICT | attrs).map_err(on(name))?;
    let point =
        open_below(making.root()?, name, OFlag::O_PATH | OFlag::O_DIRECTORY).map_err(on(name))?;
    attach(fs.as_fd(), point.as_fd(), c"").map_err(on(name))
}

/// Opens this user namespace's quotas of further namespaces.
pub(super) fn open_namespace_quotas(making: &mut Making<'_>) -> Result<(), Cause> {
    for kind in NAMESPACE_QUOTAS {
        let path = format!("proc/sys/user/max_{kind}_namespaces");
        let file = open_below(making.root()?, &path, OFlag::O_WRONLY).map_err(on(path))?;
        making.quotas.push(file);
    }
    Ok(())
}

/// Sets these quotas to zero.
pub(super) fn no_nested_namespaces(making: &mut Making<'_>) -> Result<(), Cause> {
    for (kind, quota) in NAMESPACE_QUOTAS.iter().zip(making.quotas.drain(..)) {
        if Protection::NamespaceQuotas.is_off() {
            continue;
        }
        let object = || on(format!("/proc/sys/user/max_{kind}_namespaces"));
        File::from(quota)
            .write_all(b"0")
            .map_err(|e| object()(errno_of(&e)))?;
    }
    Ok(())
}

/// Makes parts of /proc read-only by mounting them on themselves.
pub(super) fn read_only(making: &mut Making<'_>) -> Result<(), Cause> {
    if Protection::ReadOnlyProc.is_off() {
        return Ok(());
    }
    for path in READ_ONLY {
        let Some(place) = find(making.root()?, path)? else {
            continue;
        };
        let copy = clone_mount(place.as_fd(), c"", Depth::One).map_err(on(*path))?;
        set_attrs(copy.as_fd(), STRICT | attr::RDONLY, Depth::One).map_err(on(*path))?;
        attach(copy.as_fd(), place.as_fd(), c"").map_err(on(*path))?;
    }
    Ok(())
}

/// Hides what [`MASKED`] lists, where this kernel has it.
pub(super) fn masks(making: &mut Making<'_>) -> Result<(), Cause> {
    if Protection::Masks.is_off() {
        return Ok(());
    }
    let root = making.root()?;
    let null = open_below(root, "dev/null", OFlag::O_PATH).map_err(on("/dev/null"))?;
    // All directories share one empty file system. It has to be attached somewhere before it can be copied.
    let mut empty: Option<OwnedFd> = None;
    for path in MASKED {
        let Some(place) = find(root, path)? else {
            continue;
        };
        let stat = fstat(&place).map_err(on(*path))?;
        let directory = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR;
        let cover = match (&empty, directory) {
            (_, false) => clone_mount(null.as_fd(), c"", Depth::One).map_err(on(*path))?,
            (Some(first), true) => {
                clone_mount(first.as_fd(), c"", Depth::One).map_err(on(*path))?
            }
            (None, true) => tmpfs(4096, 0o555, STRICT | attr::RDONLY).map_err(on(*path))?,
        };
        attach(cover.as_fd(), place.as_fd(), c"").map_err(on(*path))?;
        if directory && empty.is_none() {
            empty = Some(cover);
        }
    }
    Ok(())
}

/// Opens a place in the kernel's file systems; `None` if this kernel has no such thing.
fn find(root: BorrowedFd<'_>, path: &str) -> Result<Option<OwnedFd>, Cause> {
    match open_below(root, path, OFlag::O_PATH) {
        Ok(place) => Ok(Some(place)),
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(on(path)(errno)),
    }
}
