//! Entries that mean "what the layers below have here is gone", as image layers write them: `.wh.NAME` for one name,
//! `.wh..wh..opq` for all that a directory had.
//!
//! In a stored layer they are what an overlay mounted with `userxattr` honours: a character device 0:0, which is no
//! device at all, and the attribute `user.overlay.opaque`. Both are made by us here and never come from an archive.

use rustix::fs::{FileType, Stat};

const PREFIX: &[u8] = b".wh.";
/// Names that begin so are aufs's own bookkeeping.
const RESERVED: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// The attribute of a directory that hides what lies below it.
pub(super) const OPAQUE_XATTR: &str = "user.overlay.opaque";

/// What a name means in a layer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Marker<'a> {
    /// A file like any other.
    None,
    /// This name is gone.
    Gone(&'a [u8]),
    /// All that this directory had is gone.
    Opaque,
    /// Bookkeeping of another system.
    Reserved,
}

impl<'a> Marker<'a> {
    /// Reads the last part of an entry's name; refuses one that would hide `.` or `..`.
    pub(super) fn of(name: &'a [u8]) -> Result<Self, &'static str> {
        match name.strip_prefix(PREFIX) {
            None => Ok(Self::None),
            Some(_) if name == OPAQUE => Ok(Self::Opaque),
            Some(_) if name.starts_with(RESERVED) => Ok(Self::Reserved),
            Some(b"" | b"." | b"..") => Err("it hides a name that no file can have"),
            Some(gone) => Ok(Self::Gone(gone)),
        }
    }
}

/// Whether this is a whiteout that we made.
pub(super) fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_told_by_their_name() {
        assert_eq!(Marker::of(b"wh.a"), Ok(Marker::None));
        assert_eq!(Marker::of(b".wh.a"), Ok(Marker::Gone(b"a")));
        assert_eq!(Marker::of(b".wh..a"), Ok(Marker::Gone(b".a")));
        assert_eq!(Marker::of(b".wh..wh..opq"), Ok(Marker::Opaque));
        assert_eq!(Marker::of(b".wh..wh.plnk"), Ok(Marker::Reserved));
        for name in [".wh.", ".wh..", ".wh..."] {
            assert!(Marker::of(name.as_bytes()).is_err(), "{name}");
        }
    }
}
