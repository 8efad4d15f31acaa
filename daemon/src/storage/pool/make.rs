//! Making a pool's file, so that after a crash between any two steps there is no pool or a whole one: it is made under another
//! name, put on disk, and renamed.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{SIZE_MIN, SIZE_UNIT, Settings, free_at, has_entries};
use crate::fault;
use crate::storage::choice::mkfs;
use crate::storage::{StorageError, program};
use crate::store::sync_dir;

/// How a pool is formatted, with the reason of each.
const OPTIONS: &[&str] = &[
    "--quiet",
    // One copy of the metadata, as the host's own file systems have: both copies would lie on the same disk. Checksums stay.
    "--metadata=single",
    "--data=single",
    // The file is new and sparse: there is nothing to discard.
    "--nodiscard",
    "--label=lodge",
];

/// Makes the file unless there is one. What an earlier try left is made anew.
pub(super) fn make_if_new(path: &Path, settings: Settings<'_>) -> Result<(), StorageError> {
    if path
        .try_exists()
        .map_err(|e| StorageError::io("stat", path, e))?
    {
        return Ok(());
    }
    refuse_a_loss(path, settings.state_dir)?;
    let bytes = size(settings)?;
    let temp = path.with_extension("img.new");
    tracing::info!(pool = %path.display(), bytes, "making the pool");
    let made = make(&temp, path, bytes);
    if made.is_err()
        && let Err(error) = fs::remove_file(&temp)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(%error, path = %temp.display(), "half a pool stays until the next start");
    }
    made
}

/// A pool that is gone is never made anew while sandboxes are there: what they wrote is on a disk that is not mounted, or lost.
fn refuse_a_loss(path: &Path, state_dir: &Path) -> Result<(), StorageError> {
    if has_entries(&state_dir.join("sandboxes"))? {
        return Err(StorageError::Unfit {
            what: format!(
                "{} is gone, and there are sandboxes that have their files in it",
                path.display()
            ),
            hint: "bring the file back; to give the sandboxes up, remove the directory `sandboxes` beside it",
        });
    }
    Ok(())
}

fn size(settings: Settings<'_>) -> Result<u64, StorageError> {
    let bytes = match settings.bytes {
        Some(bytes) => bytes,
        None => free_at(settings.state_dir)? / 4 * 3,
    };
    let bytes = bytes / SIZE_UNIT * SIZE_UNIT;
    if bytes < SIZE_MIN {
        return Err(StorageError::Unfit {
            what: format!("a pool of {bytes} bytes is too small: the least is {SIZE_MIN}"),
            hint: "make room where state_dir is, or set storage.driver to \"overlay\"",
        });
    }
    Ok(bytes)
}

fn make(temp: &Path, path: &Path, bytes: u64) -> Result<(), StorageError> {
    let file = fault::around("pool.make file", || make_file(temp, bytes))
        .map_err(|e| StorageError::io("make", temp, e))?;
    fault::around("pool.format", || {
        format(temp).and_then(|()| file.sync_all())
    })
    .map_err(|e| StorageError::io("format", temp, e))?;
    fault::around("pool.rename", || fs::rename(temp, path))
        .map_err(|e| StorageError::io("rename to", path, e))?;
    let dir = path.parent().expect("a file in the state directory");
    sync_dir(dir).map_err(|e| StorageError::io("sync", dir, e))
}

fn make_file(temp: &Path, bytes: u64) -> io::Result<File> {
    // A file of its own: mkfs of a daemon that was killed may still write to that of an earlier try.
    match fs::remove_file(temp) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(temp)?;
    file.set_len(bytes)?;
    Ok(file)
}

/// The program is the way: what a file system of btrfs is made of changes with its versions.
fn format(file: &Path) -> io::Result<()> {
    let program: PathBuf = mkfs().ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotFound,
            "there is no mkfs.btrfs: install btrfs-progs",
        )
    })?;
    let output = Command::new(program)
        .args(OPTIONS.iter().map(OsStr::new))
        .arg(file)
        .env_clear()
        .stdin(Stdio::null())
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(program::failure("mkfs.btrfs", &output))
}
