//! The archive's blocks, one entry after the other, and each one's content.
//!
//! An archive ends with a block of zeros. One that stops without it is truncated, also where it stops between two
//! entries; what comes after the zeros is ignored.

use std::io::{self, Read};

use tar::Header;

use super::entry::content_size;
use super::extended::Extended;
use super::{Entry, SparseMap};
use crate::image::ImageError;

const BLOCK: usize = 512;
/// Largest PAX header, in bytes.
const PAX_MAX: u64 = 1024 * 1024;
/// Largest GNU long name, in bytes; it is refused later if it is longer than a path may be.
const LONG_NAME_MAX: u64 = 64 * 1024;
/// Bytes read at once when content is skipped; the source is buffered.
const SKIP_BUFFER: usize = 8 * 1024;

/// Reads entries from a plain tar stream.
pub(in crate::image) struct TarReader<R> {
    source: R,
    /// Bytes taken from the stream.
    offset: u64,
    /// Content of the current entry that was not read yet.
    content: u64,
    /// Padding after that content.
    padding: u64,
}

impl<R: Read> TarReader<R> {
    pub(in crate::image) fn new(source: R) -> Self {
        Self {
            source,
            offset: 0,
            content: 0,
            padding: 0,
        }
    }

    /// Bytes taken from the stream: after [`Self::next`], where the entry's content begins.
    pub(in crate::image) fn offset(&self) -> u64 {
        self.offset
    }

    /// The next entry, or `None` at the archive's end. What was not read of the last one is skipped.
    pub(in crate::image) fn next(&mut self) -> Result<Option<Entry>, ImageError> {
        let mut extended = Extended::default();
        loop {
            self.skip(self.content + self.padding)?;
            (self.content, self.padding) = (0, 0);
            let Some(header) = self.header()? else {
                return if extended.is_empty() {
                    Ok(None)
                } else {
                    Err(truncated("an entry"))
                };
            };
            // Every extended header may come once for an entry, so this loop is bounded but for global ones, whose
            // number the stream's own bound limits.
            match header.entry_type().as_byte() {
                b'x' => self.extension(&header, PAX_MAX, |c| extended.pax(c))?,
                b'g' => self.extension(&header, PAX_MAX, Extended::global)?,
                b'L' => self.extension(&header, LONG_NAME_MAX, |c| extended.long_name(c))?,
                b'K' => self.extension(&header, LONG_NAME_MAX, |c| extended.long_link(c))?,
                _ => return self.entry(&header, extended).map(Some),
            }
        }
    }

    /// Reads from the current entry's content; 0 at its end.
    pub(in crate::image) fn read_content(
        &mut self,
        buffer: &mut [u8],
    ) -> Result<usize, ImageError> {
        let want = buffer
            .len()
            .min(usize::try_from(self.content).unwrap_or(usize::MAX));
        if want == 0 {
            return Ok(0);
        }
        let count = self.read_some(&mut buffer[..want])?;
        if count == 0 {
            return Err(truncated("the content of a file"));
        }
        self.content -= count as u64;
        Ok(count)
    }

    /// Reads the stream to its end, whatever comes after the archive, so that a digest covers all of it.
    pub(in crate::image) fn drain(mut self) -> Result<(), ImageError> {
        let mut buffer = [0; SKIP_BUFFER];
        while self.read_some(&mut buffer)? > 0 {}
        Ok(())
    }

    fn entry(&mut self, header: &Header, extended: Extended) -> Result<Entry, ImageError> {
        let name = header.path_bytes().into_owned();
        let refused = |problem| ImageError::entry(&name, problem);
        let size = content_size(header, &extended).map_err(refused)?;
        let sparse = match header.entry_type().as_byte() {
            b'S' => Some(self.sparse_map(header)?.finish(size).map_err(refused)?),
            _ => None,
        };
        self.begin_content(size);
        Entry::decode(header, extended, sparse)
    }

    fn sparse_map(&mut self, header: &Header) -> Result<SparseMap, ImageError> {
        let refused = |problem| ImageError::entry(&header.path_bytes(), problem);
        let (mut map, mut more) = SparseMap::begin(header).map_err(refused)?;
        let mut blocks = 0;
        while more {
            // Empty blocks add no stretch, so the map's own bound does not stop them.
            blocks += 1;
            if blocks > 4096 {
                return Err(refused("its sparse map has more than 4096 blocks"));
            }
            let block = self
                .block("a sparse map")?
                .ok_or_else(|| truncated("a sparse map"))?;
            more = map.extend(&block).map_err(refused)?;
        }
        Ok(map)
    }

    fn begin_content(&mut self, size: u64) {
        self.content = size;
        self.padding = size.wrapping_neg() % BLOCK as u64;
    }

    /// Reads the content of an extended header and hands it to `take`.
    fn extension(
        &mut self,
        header: &Header,
        limit: u64,
        take: impl FnOnce(&[u8]) -> Result<(), &'static str>,
    ) -> Result<(), ImageError> {
        let at = self.offset - BLOCK as u64;
        let damaged = |problem| ImageError::Header {
            offset: at,
            problem,
        };
        let size = header
            .entry_size()
            .map_err(|_| damaged("its size is no number"))?;
        if size > limit {
            return Err(damaged("an extended header is larger than allowed"));
        }
        self.begin_content(size);
        let mut content = vec![0; usize::try_from(size).expect("bounded by `limit`")];
        let mut filled = 0;
        while filled < content.len() {
            filled += self.read_content(&mut content[filled..])?;
        }
        take(&content).map_err(damaged)
    }

    /// The next header, or `None` at the block of zeros.
    fn header(&mut self) -> Result<Option<Header>, ImageError> {
        let at = self.offset;
        let block = self
            .block("a header")?
            .ok_or_else(|| truncated("its list of entries"))?;
        if block.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        let mut header = Header::new_old();
        header.as_mut_bytes().copy_from_slice(&block);
        let stored = header.cksum().ok();
        if stored != Some(checksum(&block)) {
            return Err(ImageError::Header {
                offset: at,
                problem: "its checksum is wrong",
            });
        }
        Ok(Some(header))
    }

    /// One block, or `None` if the stream ends just before it.
    fn block(&mut self, inside: &'static str) -> Result<Option<[u8; BLOCK]>, ImageError> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.read_some(&mut block[filled..])? {
                0 if filled == 0 => return Ok(None),
                0 => return Err(truncated(inside)),
                count => filled += count,
            }
        }
        Ok(Some(block))
    }

    fn skip(&mut self, mut count: u64) -> Result<(), ImageError> {
        if count == 0 {
            return Ok(());
        }
        let mut buffer = [0; SKIP_BUFFER];
        while count > 0 {
            let want = SKIP_BUFFER.min(usize::try_from(count).unwrap_or(SKIP_BUFFER));
            match self.read_some(&mut buffer[..want])? {
                0 => return Err(truncated("the content of a file")),
                got => count -= got as u64,
            }
        }
        Ok(())
    }

    fn read_some(&mut self, buffer: &mut [u8]) -> Result<usize, ImageError> {
        loop {
            match self.source.read(buffer) {
                Ok(count) => {
                    self.offset += count as u64;
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ImageError::from_read(error)),
            }
        }
    }
}

fn truncated(inside: &'static str) -> ImageError {
    ImageError::Truncated { inside }
}

/// The sum of a header's bytes, with its own field taken as spaces.
fn checksum(block: &[u8; BLOCK]) -> u32 {
    const FIELD: std::ops::Range<usize> = 148..156;
    let sum = |bytes: &[u8]| bytes.iter().map(|b| u32::from(*b)).sum::<u32>();
    sum(&block[..FIELD.start]) + u32::from(b' ') * 8 + sum(&block[FIELD.end..])
}
