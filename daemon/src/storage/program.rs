//! Programs of the host that make file systems.

use std::io;
use std::path::PathBuf;
use std::process::Output;

/// Where they are looked for beside PATH: a unit of systemd may have a PATH without the programs of root.
const DIRS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin"];

/// Bytes of what a program says that an error has, from the end.
const SAID_MAX: usize = 512;
/// The words of strerror(3) for ENOSPC and EDQUOT. A program that is given no locale says these.
const NO_ROOM: [&str; 2] = ["No space left on device", "Disk quota exceeded"];

/// The program of this name, if this host has it.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(DIRS.map(PathBuf::from))
        // A relative entry of PATH would lead to whatever lies in the working directory.
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join(name))
        .find(|program| program.is_file())
}

/// Why a program failed: the end of what it said, on either stream. That there was no room is told as of a system call.
pub fn failure(name: &str, output: &Output) -> io::Error {
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    let said = String::from_utf8_lossy(&said[said.len().saturating_sub(SAID_MAX)..]).into_owned();
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let kind = if NO_ROOM.iter().any(|words| said.contains(words)) {
        io::ErrorKind::StorageFull
    } else {
        io::ErrorKind::Other
    };
    io::Error::new(kind, format!("{name} ended with {}: {said}", output.status))
}
