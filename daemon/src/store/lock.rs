//! The lock that keeps a second daemon out of a state directory.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use super::StoreError;
use super::directories::make_private_dir;

/// Name of the lock file in the state directory.
const LOCK_FILE: &str = "lock";
/// A pid has at most 7 digits.
const PID_TEXT_MAX: u64 = 16;

/// Held for as long as the daemon lives; the kernel drops it with the process, however that ends.
#[derive(Debug)]
pub struct StateLock(#[expect(dead_code, reason = "held, not read")] File);

impl StateLock {
    /// Takes the lock on `state_dir`, or tells who has it.
    pub fn take(state_dir: &Path) -> Result<Self, StoreError> {
        let path = state_dir.join(LOCK_FILE);
        make_private_dir(state_dir)?;
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(&path)
            .map_err(|e| StoreError::io("open", &path, e))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(StoreError::Locked {
                    dir: state_dir.to_owned(),
                    owner: owner(lock),
                });
            }
            Err(errno) => return Err(StoreError::io("lock", &path, errno.into())),
        }
        // The pid is for the message of the next daemon only; the lock itself is the kernel's.
        let written = lock
            .set_len(0)
            .and_then(|()| lock.rewind())
            .and_then(|()| writeln!(lock, "{}", std::process::id()));
        match written.map_err(|e| StoreError::io("write", &path, e)) {
            // Whoever makes room needs a daemon that starts on a full file system.
            Err(error) if error.is_for_want_of_room() => {
                tracing::warn!(%error, "no room for the pid of this daemon");
            }
            other => other?,
        }
        Ok(Self(lock))
    }
}

fn owner(file: File) -> String {
    let mut text = String::new();
    match file.take(PID_TEXT_MAX).read_to_string(&mut text) {
        Ok(_) if !text.trim().is_empty() => format!("pid {}", text.trim()),
        _ => "another process".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_is_refused_and_names_directory_and_pid() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let first = StateLock::take(dir.path()).expect("free");
        let refused = StateLock::take(dir.path()).expect_err("taken").to_string();
        assert!(
            refused.contains(&dir.path().display().to_string()),
            "{refused}"
        );
        assert!(
            refused.contains(&std::process::id().to_string()),
            "{refused}"
        );
        drop(first);
        StateLock::take(dir.path()).expect("free again");
    }
}
