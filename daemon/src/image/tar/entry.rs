//! One entry, decoded: the header's fields with its extended headers laid over them, or refused.
//!
//! Where two sources disagree (a PAX size and the header's), the entry is refused: readers that pick different ones
//! see different archives, which is how files are smuggled past a check.

use tar::Header;

use super::extended::{Extended, PaxTime};
use super::{EntryPath, SparseMap};
use crate::image::ImageError;

/// Highest owner that a sandbox's 65,536 ids can hold.
const ID_MAX: u64 = 65_535;
/// Largest size that fits a header's twelve octal digits; a PAX size beyond it stands alone.
const OCTAL_SIZE_MAX: u64 = 0o77_777_777_777;
/// Longest target of a symbolic link: the kernel's PATH_MAX less the final NUL.
const TARGET_MAX: usize = 4095;

/// What an entry is.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::image) enum Kind {
    File,
    Sparse(SparseMap),
    Directory,
    /// With its target, as it is: it means something only inside a sandbox.
    Symlink(Vec<u8>),
    /// With its target, a name in this archive.
    HardLink(EntryPath),
    /// Not made, for this reason.
    LeftOut(&'static str),
}

/// One entry.
#[derive(Debug)]
pub(in crate::image) struct Entry {
    pub(in crate::image) path: EntryPath,
    pub(in crate::image) kind: Kind,
    /// Bytes of content in the archive.
    pub(in crate::image) size: u64,
    /// Permissions with setuid, setgid and sticky.
    pub(in crate::image) mode: u32,
    pub(in crate::image) uid: u32,
    pub(in crate::image) gid: u32,
    pub(in crate::image) mtime: PaxTime,
    /// Extended attributes, all of them; which ones are kept is the extractor's rule.
    pub(in crate::image) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Entry {
    /// Decodes a header. `sparse` is the map that followed it, if it has the type of a sparse file.
    pub(super) fn decode(
        header: &Header,
        extended: Extended,
        sparse: Option<SparseMap>,
    ) -> Result<Self, ImageError> {
        let raw = extended
            .path
            .clone()
            .unwrap_or_else(|| header.path_bytes().into_owned());
        Self::decode_named(header, extended, sparse, &raw)
            .map_err(|problem| ImageError::entry(&raw, problem))
    }

    fn decode_named(
        header: &Header,
        extended: Extended,
        sparse: Option<SparseMap>,
        raw: &[u8],
    ) -> Result<Self, &'static str> {
        let size = content_size(header, &extended)?;
        let target = extended
            .link
            .or_else(|| header.link_name_bytes().map(|l| l.into_owned()));
        let kind = kind(header, raw, size, target.unwrap_or_default(), sparse)?;
        let header_mtime = || header.mtime().unwrap_or(0).cast_signed();
        Ok(Self {
            path: EntryPath::parse(raw)?,
            kind,
            size,
            mode: header.mode().map_err(|_| "its mode is no number")? & 0o7777,
            uid: owner(extended.uid, header.uid())?,
            gid: owner(extended.gid, header.gid())?,
            mtime: extended.mtime.unwrap_or_else(|| PaxTime {
                seconds: header_mtime(),
                nanos: 0,
            }),
            xattrs: extended.xattrs,
        })
    }
}

/// The size that the header and the PAX record agree on.
pub(super) fn content_size(header: &Header, extended: &Extended) -> Result<u64, &'static str> {
    let plain = header.entry_size().map_err(|_| "its size is no number")?;
    match extended.size {
        None => Ok(plain),
        Some(size) if size == plain || (plain == 0 && size > OCTAL_SIZE_MAX) => Ok(size),
        Some(_) => Err("its two sizes disagree"),
    }
}

fn kind(
    header: &Header,
    raw: &[u8],
    size: u64,
    target: Vec<u8>,
    sparse: Option<SparseMap>,
) -> Result<Kind, &'static str> {
    let kind = match header.entry_type().as_byte() {
        // Archives from before 1988 mark a directory by its final slash alone.
        b'0' | b'\0' if raw.ends_with(b"/") => Kind::Directory,
        b'0' | b'\0' | b'7' => return Ok(Kind::File),
        b'S' => {
            return sparse
                .map(Kind::Sparse)
                .ok_or("it is sparse and has no map");
        }
        b'1' => {
            Kind::HardLink(EntryPath::parse(&target).map_err(|_| "its link target is invalid")?)
        }
        b'2' => Kind::Symlink(checked_target(target)?),
        b'3' => Kind::LeftOut("a character device"),
        b'4' => Kind::LeftOut("a block device"),
        b'5' => Kind::Directory,
        b'6' => Kind::LeftOut("a fifo"),
        b'V' => Kind::LeftOut("a volume label"),
        b'M' => return Err("it continues from another volume"),
        _ => return Err("its type is unknown"),
    };
    // Readers differ on whether such content is there or not, so what follows would be read two ways.
    if size == 0 {
        Ok(kind)
    } else {
        Err("it has content, which its type does not allow")
    }
}

fn checked_target(target: Vec<u8>) -> Result<Vec<u8>, &'static str> {
    if target.is_empty() || target.len() > TARGET_MAX || target.contains(&0) {
        return Err("its link target is invalid");
    }
    Ok(target)
}

/// An owner is kept or refused, never clamped: a file must not silently become somebody else's.
fn owner(extended: Option<u64>, header: std::io::Result<u64>) -> Result<u32, &'static str> {
    let id = match extended {
        Some(id) => id,
        None => header.map_err(|_| "its owner is no number")?,
    };
    u32::try_from(id)
        .ok()
        .filter(|id| u64::from(*id) <= ID_MAX)
        .ok_or("its owner or group is above 65535")
}
