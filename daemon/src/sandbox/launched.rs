//! What a sandbox was launched with and cannot change while it lives, limits and whose it is: a file beside its holder's
//! socket, gone with the holder. The record has what was asked for since.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::id::SandboxId;
use super::platform::Platform;
use crate::error::{Error, Result, chain};
use crate::holder::make_dir;
use crate::store::Record;

/// What a holder was launched with.
#[derive(Serialize, Deserialize)]
pub(super) struct Launched {
    /// Soft RLIMIT_NOFILE of runs.
    pub(super) open_files: u64,
    /// Size of /dev/shm, in bytes.
    pub(super) shm_bytes: u64,
    /// The mark of the state directory that has it. Empty: launched by a daemon that noted none.
    #[serde(default)]
    pub(super) owner: String,
}

/// Notes it before the launch.
pub(super) fn write(platform: &Platform, record: &Record) -> Result<()> {
    let launched = Launched {
        open_files: record.spec.limits.open_files,
        shm_bytes: record.spec.limits.shm_bytes,
        owner: platform.owner.clone(),
    };
    let bytes = serde_json::to_vec(&launched).expect("plain data");
    let path = path(&platform.holders_dir, &record.id);
    let written = match fs::write(&path, &bytes) {
        // Somebody has wiped it.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            make_dir(&platform.holders_dir).and_then(|()| fs::write(&path, &bytes))
        }
        written => written,
    };
    written.map_err(|error| {
        Error::internal(
            "RUNTIME_DIR_UNUSABLE",
            "cannot write to the runtime directory",
            error,
        )
        .hint("is it full?")
    })
}

/// What it was launched with; `None` where that is not known: then it is what the record says.
pub(super) fn read(platform: &Platform, id: &SandboxId) -> Option<Launched> {
    read_in(&platform.holders_dir, id)
}

/// The same, of any sandbox whose holder listens in that directory.
pub(super) fn read_in(holders_dir: &Path, id: &SandboxId) -> Option<Launched> {
    serde_json::from_slice(&fs::read(path(holders_dir, id)).ok()?).ok()
}

/// The holder is dead.
pub(super) fn remove(platform: &Platform, id: &SandboxId) {
    match fs::remove_file(path(&platform.holders_dir, id)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(sandbox = %id, error = %chain(&error), "note of a launch not removed");
        }
        _ => {}
    }
}

fn path(holders_dir: &Path, id: &SandboxId) -> PathBuf {
    holders_dir.join(format!("{id}.launched"))
}
