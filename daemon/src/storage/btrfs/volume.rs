//! The number of a sandbox's subvolume and qgroup, and the file that says it.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use lodge_kernel::btrfs::LEVEL_SHIFT;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::fault;
use crate::storage::StorageError;
use crate::store::replace_file;

const FILE: &str = "volume";
const VERSION: u32 = 1;
/// Far above the length of the file, in bytes.
const BYTES_MAX: u64 = 4096;
/// Digits of a number in a name.
const DIGITS: usize = 16;

/// What belongs to one sandbox in the pool: a number of 48 bits that is not zero. It is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Volume(u64);

impl Volume {
    /// One that nobody has, as far as chance can tell.
    pub(super) fn random() -> io::Result<Self> {
        loop {
            let random = getrandom::u64().map_err(|e| io::Error::other(e.to_string()))?;
            if let Some(volume) = Self::from_number(random >> (u64::BITS - LEVEL_SHIFT)) {
                return Ok(volume);
            }
        }
    }

    fn from_number(number: u64) -> Option<Self> {
        (number != 0 && number >> LEVEL_SHIFT == 0).then_some(Self(number))
    }

    /// The one whose root has this name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if name.len() != DIGITS || !name.bytes().all(is_digit) {
            return None;
        }
        Self::from_number(u64::from_str_radix(name, 16).ok()?)
    }

    /// The one that has this qgroup.
    pub(super) fn of_qgroup(id: u64) -> Option<Self> {
        let volume = Self::from_number(id & ((1 << LEVEL_SHIFT) - 1))?;
        (volume.qgroup() == id).then_some(volume)
    }

    /// The qgroup of level 2 that a pool with this number has for all its sandboxes.
    pub(super) const fn qgroup_of_all(self) -> u64 {
        2 << LEVEL_SHIFT | self.0
    }

    /// The id of its qgroup.
    pub(super) const fn qgroup(self) -> u64 {
        1 << LEVEL_SHIFT | self.0
    }

    /// The one that a sandbox's own directory names, if it does.
    pub(super) fn read(dir: &Path) -> io::Result<Option<Self>> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
            .open(dir.join(FILE));
        let file = match file {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let mut bytes = Vec::new();
        file.take(BYTES_MAX).read_to_end(&mut bytes)?;
        let said: Said = serde_json::from_slice(&bytes)?;
        let volume = Self::parse(&said.number).filter(|_| said.version == VERSION);
        let unknown = || io::Error::new(io::ErrorKind::InvalidData, "not a volume of this version");
        volume.map(Some).ok_or_else(unknown)
    }

    /// Has a sandbox's own directory name it. On disk when this returns.
    pub(super) fn write(self, dir: &Path) -> Result<(), StorageError> {
        let path = dir.join(FILE);
        let said = Said {
            version: VERSION,
            number: self.to_string(),
        };
        let bytes = serde_json::to_vec(&said).expect("plain values are JSON");
        fault::around("btrfs.write volume", || replace_file(&path, &bytes))
            .map_err(|e| StorageError::io("write", &path, e))
    }

    /// Takes back what [`write`](Self::write) may have done.
    pub(super) fn unwrite(dir: &Path) -> io::Result<()> {
        match fs::remove_file(dir.join(FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

/// The name of its root.
impl fmt::Display for Volume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:0DIGITS$x}", self.0)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    version: u32,
    number: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_read_as_it_was_written() {
        let temp = tempfile::tempdir().expect("temporary directory");
        assert_eq!(Volume::read(temp.path()).expect("read"), None);
        let volume = Volume::random().expect("a number");
        volume.write(temp.path()).expect("written");
        assert_eq!(Volume::read(temp.path()).expect("read"), Some(volume));
        assert_eq!(Volume::parse(&volume.to_string()), Some(volume));
        assert_eq!(Volume::of_qgroup(volume.qgroup()), Some(volume));
        Volume::unwrite(temp.path()).expect("taken back");
        Volume::unwrite(temp.path()).expect("taken back before");
        assert_eq!(Volume::read(temp.path()).expect("read"), None);
    }

    #[test]
    fn what_is_no_volume_is_an_error_and_never_a_guess() {
        let temp = tempfile::tempdir().expect("temporary directory");
        for text in [
            "",
            "{}",
            r#"{"version":2,"number":"0000000000000001"}"#,
            r#"{"version":1,"number":"0000000000000000"}"#,
            r#"{"version":1,"number":"../../../../../etc"}"#,
            r#"{"version":1,"number":"0001000000000000"}"#,
            r#"{"version":1,"number":"000000000000000A"}"#,
        ] {
            fs::write(temp.path().join(FILE), text).expect("written");
            Volume::read(temp.path()).expect_err(text);
        }
        fs::remove_file(temp.path().join(FILE)).expect("removed");
        std::os::unix::fs::symlink("/dev/null", temp.path().join(FILE)).expect("link");
        Volume::read(temp.path()).expect_err("a link");
    }

    #[test]
    fn only_qgroups_of_level_one_are_of_volumes() {
        for group in [0, 300, 1 << 48, 2 << 48 | 1, 3 << 48 | 7] {
            assert_eq!(Volume::of_qgroup(group), None, "{group:x}");
        }
    }
}
