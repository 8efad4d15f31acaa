//! Giving the memory of a sandbox's runs back to the host: page cache always, other memory where there is swap.

use std::fs;
use std::path::Path;

use super::controller::Controller;
use super::limits::Version;
use super::sandbox::SandboxGroup;
use super::usage::single_value;

impl SandboxGroup {
    /// Gives back what can be given back, and says how many bytes less the kernel counts then. `None` where this host cannot
    /// be asked for it. Takes as long as the kernel needs to look at all of the memory: not for an async task.
    #[must_use]
    pub fn reclaim(&self) -> Option<u64> {
        let (path, version) = self.limited_group(Controller::Memory)?;
        let counter = match version {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        };
        let count = || single_value(&fs::read_to_string(path.join(counter)).ok()?);
        let before = count()?;
        if before > 0 {
            ask(&path, version, before)?;
        }
        Some(before.saturating_sub(count()?))
    }
}

/// Both files answer with an error where less could be given back than there is: that is no failure. Only a file that is
/// not there is.
fn ask(path: &Path, version: Version, bytes: u64) -> Option<()> {
    let (file, value) = match version {
        Version::V1 => ("memory.force_empty", "0".to_owned()),
        Version::V2 => ("memory.reclaim", bytes.to_string()),
    };
    let file = path.join(file);
    if !file.exists() {
        return None;
    }
    fs::write(file, value).ok();
    Some(())
}
