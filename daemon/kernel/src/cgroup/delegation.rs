//! Whether systemd gave us a subtree of our own: `Delegate=yes` marks the unit's group with an extended attribute.
//!
//! Without it our parent group is made below the root, where no unit's stop or restart reaches it.

use std::ffi::CStr;
use std::path::{Path, PathBuf};

use crate::sys::xattr;

/// Set by systemd for system units; the second one since version 251.
const MARKS: [&CStr; 2] = [c"trusted.delegate", c"user.delegate"];
/// The leaf that the daemon moves to on v2, where a group with processes cannot hand controllers down.
pub(super) const DAEMON_LEAF: &str = "daemon";

/// The delegated group that this process lives in, relative to the mount point: its own group, or the one above when
/// the unit uses `DelegateSubgroup=` or the daemon has moved to its leaf.
pub(super) fn delegated_group(mount: &Path, own: &Path) -> Option<PathBuf> {
    let own = own.strip_prefix("/").ok()?;
    let candidates = own
        .ancestors()
        .take(2)
        .filter(|group| !group.as_os_str().is_empty());
    candidates
        .into_iter()
        .find(|group| is_marked(&mount.join(group)))
        .map(PathBuf::from)
}

fn is_marked(group: &Path) -> bool {
    MARKS
        .iter()
        .any(|mark| xattr::get(group, mark).is_ok_and(|value| value == b"1"))
}
