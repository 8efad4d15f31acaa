//! The map of a sparse file in the old GNU form (type `S`): which stretches of the file the archive holds.
//!
//! The map is hostile: it could claim a file of exabytes, or stretches that overlap. The PAX forms are refused.

use tar::{GnuExtSparseHeader, GnuSparseHeader, Header};

/// Most stretches of one file; each takes 16 bytes of memory here and 24 in the archive.
const STRETCHES_MAX: usize = 65_536;

/// Where the content of a sparse file goes.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::image) struct SparseMap {
    /// Offset and length, in rising order, without overlap.
    pub(in crate::image) stretches: Vec<(u64, u64)>,
    /// The file's size with its holes.
    pub(in crate::image) real_size: u64,
    stored: u64,
}

impl SparseMap {
    /// Begins with the stretches of the header; the second value says whether map blocks follow.
    pub(super) fn begin(header: &Header) -> Result<(Self, bool), &'static str> {
        let gnu = header
            .as_gnu()
            .ok_or("it is sparse, but not in the GNU form")?;
        let real_size = gnu.real_size().map_err(|_| "its real size is no number")?;
        let mut map = Self {
            stretches: Vec::new(),
            real_size,
            stored: 0,
        };
        map.add(&gnu.sparse)?;
        Ok((map, gnu.is_extended()))
    }

    /// Takes one more map block; says whether another follows.
    pub(super) fn extend(&mut self, block: &[u8; 512]) -> Result<bool, &'static str> {
        let mut more = GnuExtSparseHeader::new();
        more.as_mut_bytes().copy_from_slice(block);
        self.add(more.sparse())?;
        Ok(more.is_extended())
    }

    /// Checks the map as a whole against the content's size.
    pub(super) fn finish(self, content: u64) -> Result<Self, &'static str> {
        if self.stored == content {
            Ok(self)
        } else {
            Err("its sparse map and its size disagree")
        }
    }

    fn add(&mut self, headers: &[GnuSparseHeader]) -> Result<(), &'static str> {
        for header in headers.iter().filter(|h| !h.is_empty()) {
            let number = |n: std::io::Result<u64>| n.map_err(|_| "its sparse map has no numbers");
            let (offset, length) = (number(header.offset())?, number(header.length())?);
            let end = offset
                .checked_add(length)
                .ok_or("its sparse map overflows")?;
            let previous = self
                .stretches
                .last()
                .map_or(0, |(offset, length)| offset + length);
            if offset < previous || end > self.real_size {
                return Err("its sparse map overlaps or leaves the file");
            }
            if self.stretches.len() == STRETCHES_MAX {
                return Err("its sparse map has more than 65536 stretches");
            }
            self.stretches.push((offset, length));
            self.stored += length;
        }
        Ok(())
    }
}
