//! An entry's name, made safe: relative, without `.` or `..`, and bounded.
//!
//! This is only the first lock. The second is that every look-up is done by the kernel below the root's descriptor,
//! following no symbolic link.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Longest name, in bytes: the kernel's PATH_MAX.
const PATH_MAX: usize = 4096;
/// Longest part of a name, in bytes: the kernel's NAME_MAX.
const COMPONENT_MAX: usize = 255;
/// Deepest name, in parts. Real trees stay below 50; removing a tree recurses this deep at most.
pub(in crate::image) const DEPTH_MAX: usize = 256;

/// A name below the root: parts joined by single slashes. Empty for the root itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::image) struct EntryPath(Vec<u8>);

impl EntryPath {
    /// Cleans a name: a leading slash and `.` parts go, `..` and what is out of bounds is refused with the reason.
    pub(in crate::image) fn parse(raw: &[u8]) -> Result<Self, &'static str> {
        if raw.is_empty() {
            return Err("its name is empty");
        }
        if raw.len() > PATH_MAX {
            return Err("its name is longer than 4096 bytes");
        }
        let mut clean = Vec::with_capacity(raw.len());
        let mut depth = 0;
        for part in raw
            .split(|b| *b == b'/')
            .filter(|part| !part.is_empty() && *part != b".")
        {
            check_part(part)?;
            depth += 1;
            if !clean.is_empty() {
                clean.push(b'/');
            }
            clean.extend_from_slice(part);
        }
        if depth > DEPTH_MAX {
            Err("it lies more than 256 directories deep")
        } else {
            Ok(Self(clean))
        }
    }

    /// Whether it is the root itself.
    pub(in crate::image) fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The directory it lies in, and its last part.
    pub(in crate::image) fn split(&self) -> (&[u8], &[u8]) {
        match self.0.iter().rposition(|b| *b == b'/') {
            Some(slash) => (&self.0[..slash], &self.0[slash + 1..]),
            None => (&[], &self.0),
        }
    }

    /// The sibling of this last part.
    pub(in crate::image) fn with_name(&self, name: &[u8]) -> Self {
        let (parent, _) = self.split();
        let mut path = parent.to_vec();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        Self(path)
    }

    pub(in crate::image) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<Path> for EntryPath {
    fn as_ref(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }
}

impl AsRef<[u8]> for EntryPath {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn check_part(part: &[u8]) -> Result<(), &'static str> {
    if part.len() > COMPONENT_MAX {
        return Err("a part of its name is longer than 255 bytes");
    }
    if part.contains(&0) {
        return Err("its name has a NUL byte");
    }
    // Here a backslash is a plain character, but whoever wrote `..\x` meant to climb.
    if part.split(|b| *b == b'\\').any(|piece| piece == b"..") {
        return Err("its name climbs with `..`");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cleaned() {
        for (raw, clean) in [
            ("a/b", "a/b"),
            ("/etc/x", "etc/x"),
            ("//a//./b/", "a/b"),
            ("./", ""),
            ("/", ""),
            (".", ""),
            ("..a/b..", "..a/b.."),
        ] {
            assert_eq!(
                EntryPath::parse(raw.as_bytes()).expect(raw).as_bytes(),
                clean.as_bytes()
            );
        }
    }

    #[test]
    fn the_last_part_is_split_off() {
        let path = EntryPath::parse(b"a/b/c").expect("valid");
        assert_eq!(path.split(), (b"a/b".as_slice(), b"c".as_slice()));
        assert_eq!(path.with_name(b"d").as_bytes(), b"a/b/d");
    }
}
