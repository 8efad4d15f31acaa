//! How long a sandbox has not been used, as it outlives the daemon.
//!
//! By the steady clock of one boot: a jump of the wall clock changes nothing. Time in which the host was down does not
//! count. Nothing is synced: after a crash of the host an older stamp, or none, only makes the sandbox stay longer. One
//! that cannot be read is as none.

use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::directories::{Store, StoreError, read_capped};
use crate::sandbox::id::SandboxId;

const FILE: &str = "idle.json";
const TEMP: &str = "idle.json.new";

/// Since when the host is up, as the kernel names it; empty where it does not tell, which then is a boot of its own.
static BOOT_ID: LazyLock<String> = LazyLock::new(|| {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    text.map(|text| text.trim().to_owned()).unwrap_or_default()
});

/// For how long a sandbox has not been used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unused {
    /// For so long by now.
    pub time: Duration,
    /// Whether that goes on.
    pub pace: Pace,
}

/// Whether want of use counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pace {
    /// It counts on.
    Counting,
    /// It stands still: a caller had the sandbox paused.
    Standing,
}

#[derive(Serialize, Deserialize)]
struct Stamp {
    boot_id: String,
    /// CLOCK_MONOTONIC when it was written.
    at_ms: u64,
    unused_ms: u64,
    pace: Pace,
}

impl Store {
    /// Remembers how long a sandbox has not been used, or that it is in use.
    pub fn note_unused(&self, id: &SandboxId, unused: Option<Unused>) -> Result<(), StoreError> {
        let (path, temp) = (self.dir(id).join(FILE), self.dir(id).join(TEMP));
        let Some(unused) = unused else {
            return match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(StoreError::io("remove", &path, error))
                }
                _ => Ok(()),
            };
        };
        let stamp = Stamp {
            boot_id: BOOT_ID.clone(),
            at_ms: millis(now()),
            unused_ms: millis(unused.time),
            pace: unused.pace,
        };
        let bytes = serde_json::to_vec(&stamp).expect("a stamp is plain data");
        std::fs::write(&temp, bytes).map_err(|e| StoreError::io("write", &temp, e))?;
        std::fs::rename(&temp, &path).map_err(|e| StoreError::io("rename to", &path, e))
    }

    /// How long a sandbox has not been used, if that was remembered.
    pub fn unused(&self, id: &SandboxId) -> Option<Unused> {
        read(&self.dir(id).join(FILE), &BOOT_ID, now())
    }
}

fn read(path: &Path, boot_id: &str, now: Duration) -> Option<Unused> {
    let stamp: Stamp = serde_json::from_slice(&read_capped(path).ok()?).ok()?;
    let counts = stamp.pace == Pace::Counting && stamp.boot_id == boot_id && !boot_id.is_empty();
    let since = now.saturating_sub(Duration::from_millis(stamp.at_ms));
    let more = if counts { since } else { Duration::ZERO };
    Some(Unused {
        time: Duration::from_millis(stamp.unused_ms) + more,
        pace: stamp.pace,
    })
}

fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn stamp(boot_id: &str, pace: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join(FILE);
        let text =
            format!(r#"{{"boot_id":"{boot_id}","at_ms":1000,"unused_ms":5000,"pace":"{pace}"}}"#);
        std::fs::write(&path, text).expect("written");
        (dir, path)
    }

    #[test]
    fn it_counts_on_while_the_daemon_is_dead() {
        let (_dir, path) = stamp("a", "counting");
        let unused = read(&path, "a", HOUR).expect("a stamp");
        assert_eq!(unused.time, HOUR + Duration::from_secs(4));
    }

    #[test]
    fn time_in_which_the_host_was_down_does_not_count() {
        let (_dir, path) = stamp("a", "counting");
        let unused = read(&path, "b", HOUR).expect("a stamp");
        assert_eq!(unused.time, Duration::from_secs(5));
    }

    #[test]
    fn one_that_a_caller_paused_stands_still() {
        let (_dir, path) = stamp("a", "standing");
        let unused = read(&path, "a", HOUR).expect("a stamp");
        assert_eq!(unused.time, Duration::from_secs(5));
        assert_eq!(unused.pace, Pace::Standing);
    }

    #[test]
    fn a_torn_stamp_is_none() {
        let (_dir, path) = stamp("a", "counting");
        std::fs::write(&path, "{\"boot_id\":\"a").expect("written");
        assert_eq!(read(&path, "a", HOUR), None);
    }
}
