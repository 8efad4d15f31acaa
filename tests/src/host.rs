//! Processes, mounts and settings of the host, seen from outside the product.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sha2::{Digest, Sha256};

use crate::wait::until_blocking;

/// A killed process is reaped within this time by the host's init, which may be slow.
const REAPED_WITHIN: Duration = Duration::from_secs(10);

/// Host pids of all processes.
pub fn pids() -> Result<Vec<i32>> {
    let entries = fs::read_dir("/proc").context("list /proc")?.flatten();
    Ok(entries
        .filter_map(|e| e.file_name().to_str()?.parse().ok())
        .collect())
}

/// Pids of the processes whose user id is in `start .. start + count`, with the kernel's state letter.
pub fn processes_of_uids(start: u32, count: u32) -> Result<Vec<(i32, char)>> {
    let mut found = Vec::new();
    for pid in pids()? {
        let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else {
            continue;
        };
        let uid =
            status_field(&status, "Uid").and_then(|v| v.split_whitespace().next()?.parse().ok());
        let state = status_field(&status, "State").and_then(|v| v.trim().chars().next());
        if let (Some(uid), Some(state)) = (uid, state)
            && (start..start + count).contains(&uid)
        {
            found.push((pid, state));
        }
    }
    Ok(found)
}

/// Kills every process of these user ids. They are a test's own: no one else uses the range.
pub fn kill_uids(start: u32, count: u32) -> Result<()> {
    until_blocking("the slot's processes are gone", REAPED_WITHIN, || {
        let left = processes_of_uids(start, count)?;
        for (pid, _) in left.iter().filter(|(_, state)| *state != 'Z') {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        Ok(left.iter().all(|(_, state)| *state == 'Z').then_some(()))
    })
}

/// Kills every process that has `argument` on its command line: a path of a slot, which no one else names.
pub fn kill_by_argument(argument: &Path) -> Result<()> {
    let argument = argument.as_os_str().as_encoded_bytes();
    until_blocking("the slot's daemon is gone", REAPED_WITHIN, || {
        let mut left = false;
        for pid in pids()?
            .into_iter()
            .filter(|p| *p != std::process::id().cast_signed())
        {
            // Empty for a zombie, which is none of ours to reap.
            let cmdline = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if cmdline.split(|b| *b == 0).any(|a| a == argument) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
                left = true;
            }
        }
        Ok((!left).then_some(()))
    })
}

/// Value of a field of `/proc/<pid>/status`.
pub fn status_field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status
        .lines()
        .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}

/// A field of a process's status in kB, as bytes.
pub fn memory_field(pid: i32, name: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("status of process {pid}"))?;
    let kib = status_field(&status, name)
        .and_then(|v| v.split_whitespace().next()?.parse::<u64>().ok())
        .ok_or_else(|| anyhow!("process {pid} has no {name}"))?;
    Ok(kib * 1024)
}

/// Makes the kernel forget the highest resident memory of a process, so that `VmHWM` starts anew.
pub fn reset_peak_memory(pid: i32) -> Result<()> {
    let path = format!("/proc/{pid}/clear_refs");
    fs::write(&path, "5").with_context(|| format!("write {path}"))
}

/// What a layer that is made ahead has of descriptors: its image, its device, and the root of its mount.
const FILES_OF_A_SPARE: usize = 3;

/// Open descriptors of a process, but for those of layers that are made ahead, in the background: how many there are of these says
/// nothing of what was asked for. They are told by their images alone, since others have devices and roots as well.
pub fn open_files(pid: i32) -> Result<usize> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).context("list descriptors")?;
    let (mut all, mut spares) = (0, 0);
    for entry in entries.flatten() {
        all += 1;
        // One that is closed meanwhile is nobody's.
        let target = fs::read_link(entry.path()).unwrap_or_default();
        spares += usize::from(target.to_string_lossy().contains("/spares/"));
    }
    // Those of one that is being made are fewer yet.
    Ok(usize::saturating_sub(all, FILES_OF_A_SPARE * spares))
}

/// Threads of a process.
pub fn threads(pid: i32) -> Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/task"))
        .context("list threads")?
        .count())
}

/// Threads of a process that do not just wait for work to come or for a lock. A pool keeps such threads for long; one that
/// is stuck in a call is counted.
pub fn busy_threads(pid: i32) -> Result<usize> {
    let waiting = [
        libc::SYS_futex,
        libc::SYS_epoll_pwait,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait,
    ];
    let threads = fs::read_dir(format!("/proc/{pid}/task")).context("list threads")?;
    let mut busy = 0;
    for thread in threads {
        let call = match fs::read_to_string(thread?.path().join("syscall")) {
            Ok(call) => call,
            // It ended meanwhile.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => continue,
            Err(error) => return Err(error).context("what a thread waits for"),
        };
        let number = call.split(' ').next().and_then(|n| n.parse().ok());
        busy += usize::from(!number.is_some_and(|number| waiting.contains(&number)));
    }
    Ok(busy)
}

/// Direct children of a process.
pub fn children(pid: i32) -> Result<Vec<i32>> {
    let mut found = Vec::new();
    for other in pids()? {
        let Ok(status) = fs::read_to_string(format!("/proc/{other}/status")) else {
            continue;
        };
        if status_field(&status, "PPid") == Some(&pid.to_string()) {
            found.push(other);
        }
    }
    Ok(found)
}

/// Mount points of the host at or below `dir`, in the order of mounting.
pub fn mounts_below(dir: &Path) -> Result<Vec<PathBuf>> {
    let text = fs::read_to_string("/proc/self/mountinfo").context("read mountinfo")?;
    let points = text
        .lines()
        .filter_map(|l| l.split(' ').nth(4))
        .map(PathBuf::from);
    Ok(points.filter(|p| p.starts_with(dir)).collect())
}

/// Files that an escape would like to write, by content.
const WATCHED_FILES: &[&str] = &[
    "/etc/passwd",
    "/etc/shadow",
    "/etc/group",
    "/etc/sudoers",
    "/etc/hosts",
    "/etc/hostname",
    "/etc/resolv.conf",
    "/etc/ld.so.preload",
    "/etc/crontab",
    "/usr/bin/bash",
    "/usr/bin/env",
    "/usr/bin/true",
    "/usr/bin/mount",
    "/usr/bin/sudo",
    "/usr/bin/python3",
];
/// Settings that an escape would like to change.
const WATCHED_SYSCTLS: &[&str] = &[
    "kernel/hostname",
    "kernel/domainname",
    "kernel/core_pattern",
    "kernel/modprobe",
    "kernel/sysrq",
    "kernel/pid_max",
    "kernel/tainted",
    "vm/overcommit_memory",
    "user/max_user_namespaces",
    "net/ipv4/ip_forward",
    "fs/suid_dumpable",
];
/// Places where no test and no sandbox may mount anything.
const WATCHED_MOUNTS: &[&str] = &[
    "/etc", "/usr", "/proc", "/dev", "/sys", "/root", "/bin", "/lib", "/home",
];

/// What must not change on the host, as `what → value`.
pub fn fingerprint(extra_files: &[PathBuf]) -> Result<BTreeMap<String, String>> {
    let mut seen = BTreeMap::new();
    let watched = WATCHED_FILES
        .iter()
        .map(PathBuf::from)
        .chain(extra_files.iter().cloned());
    for path in watched {
        seen.insert(format!("file {}", path.display()), file_digest(&path));
    }
    for name in WATCHED_SYSCTLS {
        let value = fs::read_to_string(Path::new("/proc/sys").join(name)).unwrap_or_default();
        seen.insert(format!("sysctl {name}"), value.trim().to_owned());
    }
    for dir in WATCHED_MOUNTS {
        let points = mounts_below(Path::new(dir))?;
        seen.insert(format!("mounts below {dir}"), format!("{points:?}"));
    }
    Ok(seen)
}

/// Whether this process, and so the daemon that it starts, has CAP_SYS_RESOURCE: not every host's root has.
pub fn has_cap_sys_resource() -> bool {
    const CAP_SYS_RESOURCE: u64 = 1 << 24;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status_field(&status, "CapEff");
    let effective = effective.and_then(|text| u64::from_str_radix(text, 16).ok());
    effective.is_some_and(|bits| bits & CAP_SYS_RESOURCE != 0)
}

/// Runs a program of util-linux on a process.
pub fn adjust(program: &str, args: &[&str], pid: i32) -> Result<()> {
    let pid = pid.to_string();
    let output = Command::new(program).args(args).arg(&pid).output()?;
    ensure!(output.status.success(), "{program} {args:?}: {output:?}");
    Ok(())
}

/// Has the kernel prefer a process to others: for the processor, and for disks.
pub fn favour(pid: i32) -> Result<()> {
    adjust("chrt", &["--fifo", "--pid", "10"], pid)?;
    adjust("renice", &["-n", "-7", "-p"], pid)?;
    let realtime = ["--class", "1", "--classdata", "0", "--pid"];
    adjust("ionice", &realtime, pid)
}

fn file_digest(path: &Path) -> String {
    let Ok(data) = fs::read(path) else {
        return "absent".into();
    };
    let (mode, uid) = fs::metadata(path)
        .map(|m| (m.mode(), m.uid()))
        .unwrap_or_default();
    format!("{mode:o} {uid} {}", hex::encode(Sha256::digest(data)))
}
