//! Programs of the host that make file systems.

use std::path::PathBuf;

/// Where they are looked for beside PATH: a unit of systemd may have a PATH without the programs of root.
const DIRS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin"];

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
