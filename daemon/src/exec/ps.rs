//! The processes of a sandbox, read from the host's /proc by the pids in the leaves of its runs.
//!
//! What a process says of itself is hostile: reads are bounded and bytes are passed on as they are, invalid UTF-8
//! replaced; who prints them escapes them. Nothing inside is woken, entered or resolved.

use std::fs::File;
use std::io::{self, Read};
use std::time::SystemTime;

use super::run::Run;
use super::table::RunTable;
use crate::error::{Error, Result};
use crate::sandbox::Live;
use crate::sandbox::id::RunId;

/// Most processes listed.
const PROCESSES_MAX: usize = 10_000;
/// Most bytes of a command line.
const COMMAND_MAX_BYTES: u64 = 4_096;
/// Most bytes of `/proc/<pid>/status`; it has about 1,500.
const STATUS_MAX_BYTES: u64 = 16 << 10;

/// One process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its run.
    pub run: RunId,
    /// Its pid inside.
    pub pid: i32,
    /// Its user id inside.
    pub uid: u32,
    /// The kernel's state letter.
    pub state: String,
    /// Its arguments, joined by blanks; the kernel's name in brackets where it has none.
    pub command: String,
    /// Resident memory, in bytes.
    pub rss_bytes: u64,
    /// When its run was started.
    pub run_started_at: SystemTime,
    /// Whether its run's own command still lives.
    pub run_live: bool,
}

/// The processes of a started sandbox, by pid.
pub async fn processes(live: &Live, runs: &RunTable) -> Result<Vec<Process>> {
    let runs = runs.with_processes().await;
    let holder = live.holder.pid();
    let listing = tokio::task::spawn_blocking(move || {
        let uid_base = uid_base(holder)?;
        let mut all: Vec<Process> = runs.iter().flat_map(|run| of_run(run, uid_base)).collect();
        all.sort_by_key(|process| process.pid);
        all.truncate(PROCESSES_MAX);
        Ok(all)
    });
    let failed = |error| {
        Error::internal(
            "PROCESSES_UNREADABLE",
            "the processes cannot be listed",
            error,
        )
    };
    listing
        .await
        .map_err(|error| failed(io::Error::other(error)))?
        .map_err(failed)
}

fn of_run(run: &Run, uid_base: u32) -> Vec<Process> {
    let pids = run.processes();
    let read = pids.iter().take(PROCESSES_MAX).filter_map(|pid| {
        // One that ends while we look is left out.
        let status = read_bounded(&format!("/proc/{pid}/status"), STATUS_MAX_BYTES).ok()?;
        let status = Status::parse(&String::from_utf8_lossy(&status))?;
        let arguments = read_bounded(&format!("/proc/{pid}/cmdline"), COMMAND_MAX_BYTES).ok()?;
        Some(Process {
            run: run.id().clone(),
            pid: status.pid,
            uid: status.host_uid.checked_sub(uid_base)?,
            command: command(&arguments, &status.name),
            state: status.state,
            rss_bytes: status.rss_bytes,
            run_started_at: run.started_at(),
            run_live: run.is_live(),
        })
    });
    read.collect()
}

/// What is wanted of `/proc/<pid>/status`.
#[derive(Debug, PartialEq, Eq)]
struct Status {
    name: String,
    state: String,
    host_uid: u32,
    pid: i32,
    rss_bytes: u64,
}

impl Status {
    /// `None` unless the process is in a pid namespace below ours: a pid that was used anew is none of ours.
    fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| {
            let mut values = text.lines().filter_map(|line| line.strip_prefix(name));
            values.next().map(str::trim)
        };
        let mut pids = field("NSpid:")?.split_whitespace().skip(1);
        let rss_kib = field("VmRSS:").and_then(|v| v.split(' ').next()?.parse::<u64>().ok());
        Some(Self {
            name: field("Name:")?.to_owned(),
            state: field("State:")?.chars().take(1).collect(),
            host_uid: field("Uid:")?.split_whitespace().next()?.parse().ok()?,
            pid: pids.next()?.parse().ok()?,
            rss_bytes: rss_kib.unwrap_or(0) * 1024,
        })
    }
}

fn command(arguments: &[u8], name: &str) -> String {
    let arguments = arguments.strip_suffix(b"\0").unwrap_or(arguments);
    if arguments.is_empty() {
        return format!("[{name}]");
    }
    String::from_utf8_lossy(arguments).replace('\0', " ")
}

/// The host uid that is 0 inside, from PID 1's map.
fn uid_base(holder: i32) -> io::Result<u32> {
    let map = read_bounded(&format!("/proc/{holder}/uid_map"), 4096)?;
    let map = String::from_utf8_lossy(&map);
    let base = map
        .split_whitespace()
        .nth(1)
        .and_then(|base| base.parse().ok());
    base.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no uid map"))
}

fn read_bounded(path: &str, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tev\\nil\nState:\tS (sleeping)\nUid:\t1001000\t1001000\t1001000\t1001000\n\
                          NSpid:\t4242\t17\nVmRSS:\t    2048 kB\n";

    #[test]
    fn a_status_gives_the_pid_inside() {
        let status = Status::parse(STATUS).expect("complete");
        assert_eq!(
            (status.pid, status.host_uid, status.rss_bytes),
            (17, 1_001_000, 2048 * 1024)
        );
        assert_eq!(
            (status.state.as_str(), status.name.as_str()),
            ("S", "ev\\nil")
        );
    }

    #[test]
    fn a_process_of_the_host_is_none_of_ours() {
        assert_eq!(Status::parse(&STATUS.replace("\t17", "")), None);
    }

    #[test]
    fn hostile_arguments_are_joined_and_replaced() {
        assert_eq!(
            command(b"a\0b c\0\xff\x1b[2J\0", "x"),
            "a b c \u{fffd}\u{1b}[2J"
        );
        assert_eq!(command(b"", "kworker"), "[kworker]");
    }
}
