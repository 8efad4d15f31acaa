//! The processes of a sandbox, read from the host's /proc by the pids in the leaves of its runs.
//!
//! What a process says of itself is hostile: reads are bounded and bytes are passed on as they are, invalid UTF-8
//! replaced; who prints them escapes them. Nothing inside is woken, entered or resolved.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;
use tokio::sync::Semaphore;

use super::run::Run;
use super::table::RunTable;
use crate::error::{Error, ErrorKind, Result};
use crate::sandbox::Live;
use crate::sandbox::id::RunId;
use crate::sandbox::uid_range::RANGE_LEN;

/// Most processes listed.
const PROCESSES_MAX: usize = 10_000;
/// Most bytes of a command line.
const COMMAND_MAX_BYTES: u64 = 4_096;
/// Listings at once, of all sandboxes: each takes a thread that reads of processes which can keep it waiting.
const LISTINGS_MAX: usize = 4;
/// Of one sandbox.
const LISTINGS_OF_ONE: usize = 2;
/// How long a call waits for its turn and its answer. Ten thousand processes take a fraction of a second.
const PATIENCE: Duration = Duration::from_secs(5);
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

/// Listings of all sandboxes.
static LISTINGS: Semaphore = Semaphore::const_new(LISTINGS_MAX);

/// The listings of one sandbox.
pub(super) struct Listings(Arc<Semaphore>);

impl Default for Listings {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(LISTINGS_OF_ONE)))
    }
}

impl Listings {
    /// Does a listing's work, which blocks and ends by itself soon after the moment that it is told. A caller gets an error
    /// after `patience`, whatever the work waits for; its turn comes back only with the work's end.
    async fn list<T: Send + 'static>(
        &self,
        patience: Duration,
        work: impl FnOnce(Instant) -> T + Send + 'static,
    ) -> Result<T> {
        let until = Instant::now() + patience;
        let listing = async {
            let of_sandbox = Arc::clone(&self.0).acquire_owned().await;
            let of_all = LISTINGS.acquire().await;
            let turn = (of_sandbox, of_all);
            let work = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                work(until)
            });
            work.await.map_err(|error| {
                Error::internal(
                    "PROCESSES_UNREADABLE",
                    "the processes cannot be listed",
                    error,
                )
            })
        };
        let listed = tokio::time::timeout_at(until.into(), listing).await;
        listed.unwrap_or_else(|_| Err(too_slow()))
    }
}

/// The processes of a started sandbox, by pid.
pub async fn processes(live: &Live, runs: &RunTable) -> Result<Vec<Process>> {
    let with_processes = runs.with_processes().await;
    let uid_base = live.uid_base;
    let listing = runs.listings().list(PATIENCE, move |until| {
        let mut all = Vec::new();
        for run in &with_processes {
            all.extend(of_run(run, uid_base, until)?);
        }
        all.sort_by_key(|process| process.pid);
        all.truncate(PROCESSES_MAX);
        Ok(all)
    });
    listing.await?
}

/// An error where there is no time for all of them: what is left out would be taken for ended.
fn of_run(run: &Run, uid_base: u32, until: Instant) -> Result<Vec<Process>> {
    let mut all = Vec::new();
    for pid in run.processes().into_iter().take(PROCESSES_MAX) {
        if Instant::now() >= until {
            return Err(too_slow());
        }
        all.extend(read(run, pid, uid_base));
    }
    Ok(all)
}

/// One that ends while we look is left out.
fn read(run: &Run, pid: i32, uid_base: u32) -> Option<Process> {
    let process = ProcessDir::open(pid).ok()?;
    let status = process.read("status", STATUS_MAX_BYTES).ok()?;
    let status = Status::parse(&String::from_utf8_lossy(&status))?;
    let uid = uid_inside(status.host_uid, uid_base)?;
    let arguments = process.read("cmdline", COMMAND_MAX_BYTES).ok()?;
    Some(Process {
        run: run.id().clone(),
        pid: status.pid,
        uid,
        command: command(&arguments, &status.name),
        state: status.state,
        rss_bytes: status.rss_bytes,
        run_started_at: run.started_at(),
        run_live: run.is_live(),
    })
}

fn too_slow() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "PROCESSES_TOO_SLOW",
        format!(
            "the processes could not be read within {} s",
            PATIENCE.as_secs()
        ),
    )
    .hint("try again")
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

/// What a host uid is inside. `None` if it is none of the sandbox's: the pid was used anew, by somebody else.
fn uid_inside(host_uid: u32, uid_base: u32) -> Option<u32> {
    host_uid
        .checked_sub(uid_base)
        .filter(|uid| *uid < RANGE_LEN)
}

/// `/proc/<pid>` of one process: all that is read below it is of that process, or fails once it is gone.
struct ProcessDir(OwnedFd);

impl ProcessDir {
    fn open(pid: i32) -> Result<Self, Errno> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        open(format!("/proc/{pid}").as_str(), flags, Mode::empty()).map(Self)
    }

    fn read(&self, name: &str, limit: u64) -> io::Result<Vec<u8>> {
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let file = File::from(openat(&self.0, name, flags, Mode::empty())?);
        let mut bytes = Vec::new();
        file.take(limit).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
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
    fn a_uid_beyond_the_sandboxs_range_is_none_of_ours() {
        assert_eq!(uid_inside(1_001_000, 1_000_000), Some(1_000));
        assert_eq!(uid_inside(999_999, 1_000_000), None);
        assert_eq!(uid_inside(1_065_535, 1_000_000), Some(65_535));
        assert_eq!(uid_inside(1_065_536, 1_000_000), None);
    }

    #[test]
    fn what_is_read_of_a_process_ends_with_it() {
        let mut child = std::process::Command::new("sleep")
            .arg("100")
            .spawn()
            .expect("starts");
        let process = ProcessDir::open(child.id().cast_signed()).expect("lives");
        assert!(process.read("status", STATUS_MAX_BYTES).is_ok());
        child.kill().expect("killed");
        child.wait().expect("reaped");
        assert!(process.read("status", STATUS_MAX_BYTES).is_err());
    }

    #[tokio::test]
    async fn listings_that_stand_still_keep_neither_their_callers_nor_another_sandbox_waiting() {
        let (slow, other) = (Listings::default(), Listings::default());
        let patience = Duration::from_millis(50);
        let (let_go, stuck) = std::sync::mpsc::channel::<()>();
        let stuck = Arc::new(std::sync::Mutex::new(stuck));
        for _ in 0..2 * LISTINGS_MAX {
            let stuck = Arc::clone(&stuck);
            let listed = slow.list(patience, move |_| {
                stuck.lock().map(|stuck| stuck.recv().ok()).ok()
            });
            let refused = listed.await.expect_err("it stands still");
            assert_eq!(refused.reason(), "PROCESSES_TOO_SLOW");
        }
        let answer = other.list(Duration::from_secs(10), |_| 7).await;
        assert_eq!(answer.expect("there are turns left"), 7);
        drop(let_go);
        let answer = slow.list(Duration::from_secs(10), |_| 7).await;
        assert_eq!(answer.expect("the turns came back"), 7);
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
