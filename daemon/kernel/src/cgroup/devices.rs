//! Which device nodes may be opened: a second lock behind `mknod` being refused in the user namespace.
//!
//! This is for version 1; `devices_v2` has the same list where there is version 2 alone.

use cgroups_rs::fs::devices::{DevicePermissions, DeviceType, DevicesController};

use super::directory::Directory;
use super::error::{Error, Result};
use crate::protection::Protection;

/// Any number, in the notation of cgroups-rs.
pub(super) const ANY: i64 = -1;
/// Opening only: nobody in a sandbox makes device nodes.
const OPEN: [DevicePermissions; 2] = [DevicePermissions::Read, DevicePermissions::Write];

/// Character devices that a sandbox may open, by major and minor number.
pub(super) const ALLOWED: [(i64, i64, &str); 8] = [
    (1, 3, "null"),
    (1, 5, "zero"),
    (1, 7, "full"),
    (1, 8, "random"),
    (1, 9, "urandom"),
    (5, 0, "tty: the process's own terminal"),
    (5, 2, "ptmx: new terminals of the sandbox's own devpts"),
    (136, ANY, "pts: terminals of the sandbox's own devpts"),
];

/// Denies every device in `group`, then allows those above. A refused write is an error: a sandbox never starts with
/// more devices than it should have.
pub(super) fn restrict(group: &Directory) -> Result<()> {
    if Protection::Devices.is_off() {
        return Ok(());
    }
    let devices = DevicesController::new(group.path().into(), group.path().into());
    let refused = |source| Error::Devices {
        path: group.path().into(),
        source,
    };
    devices
        .deny_device(DeviceType::All, ANY, ANY, &DevicePermissions::all())
        .map_err(refused)?;
    ALLOWED.iter().try_for_each(|&(major, minor, _)| {
        devices
            .allow_device(DeviceType::Char, major, minor, &OPEN)
            .map_err(refused)
    })
}
