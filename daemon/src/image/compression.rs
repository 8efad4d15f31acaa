//! gzip and zstd, in this process, with guards against bombs.
//!
//! What a stream is, is told by its first bytes, never by a name. Formats that would need another program (xz, bzip2,
//! zip) are refused by name: nothing on this host is ever run on an archive.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Read};
use std::rc::Rc;

use super::ImageError;
use super::budget::Limits;

/// Bytes read from a file at once.
const BUFFER: usize = 256 * 1024;
/// Largest zstd window, as a power of two: 128 MiB, what the zstd command accepts without a flag. A frame that asks
/// for more is refused, so that a few bytes cannot make the daemon take gigabytes of memory.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

/// What a stream is compressed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    /// Told by the first bytes.
    fn detect(head: &[u8]) -> Result<Self, ImageError> {
        const REFUSED: [(&[u8], &str); 5] = [
            (b"\xfd7zXZ\0", "xz compression"),
            (b"BZh", "bzip2 compression"),
            (b"\x04\x22\x4d\x18", "lz4 compression"),
            (b"PK\x03\x04", "a zip archive"),
            (b"hsqs", "a squashfs file"),
        ];
        // A tar file whose first name happens to begin like another format.
        if head.get(257..262) == Some(b"ustar".as_slice()) {
            return Ok(Self::None);
        }
        if head.starts_with(b"\x1f\x8b") {
            return Ok(Self::Gzip);
        }
        // A zstd frame, or a skippable one before it.
        if head.starts_with(b"\x28\xb5\x2f\xfd")
            || (head.len() > 3 && head[1..4] == *b"\x2a\x4d\x18")
        {
            return Ok(Self::Zstd);
        }
        match REFUSED.iter().find(|(magic, _)| head.starts_with(magic)) {
            Some((_, format)) => Err(ImageError::Format { format }),
            None => Ok(Self::None),
        }
    }
}

/// A decompressed stream that stops with an [`ImageError`] inside the `io::Error` when it expands too far.
pub(super) struct Decompressed<'a> {
    inner: Box<dyn Read + 'a>,
    compression: Compression,
    taken: Rc<Cell<u64>>,
    given: u64,
    limits: Limits,
}

impl<'a> Decompressed<'a> {
    /// Detects what `source` is compressed with and reads it.
    pub(super) fn new(source: impl Read + 'a, limits: &Limits) -> Result<Self, ImageError> {
        let taken = Rc::new(Cell::new(0));
        let counted = Counted {
            inner: source,
            taken: Rc::clone(&taken),
        };
        let mut buffered = BufReader::with_capacity(BUFFER, counted);
        let head = buffered
            .fill_buf()
            .map_err(|e| ImageError::io("read", "archive", e))?;
        let compression = Compression::detect(head)?;
        let inner: Box<dyn Read + 'a> = match compression {
            Compression::None => Box::new(buffered),
            Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(buffered)),
            Compression::Zstd => Box::new(zstd_decoder(buffered)?),
        };
        Ok(Self {
            inner,
            compression,
            taken,
            given: 0,
            limits: *limits,
        })
    }

    pub(super) fn compression(&self) -> Compression {
        self.compression
    }

    fn check(&self) -> Result<(), ImageError> {
        if self.given > self.limits.unpacked_bytes {
            let limit = self.limits.unpacked_bytes;
            return Err(ImageError::Limit {
                what: "bytes once decompressed",
                limit,
            });
        }
        let allowed = self.taken.get().saturating_mul(self.limits.ratio);
        if self.given > self.limits.ratio_free_bytes && self.given > allowed {
            return Err(ImageError::Ratio {
                limit: self.limits.ratio,
            });
        }
        Ok(())
    }
}

fn zstd_decoder<'a, R: BufRead + 'a>(
    source: R,
) -> Result<zstd::stream::read::Decoder<'a, R>, ImageError> {
    let decoder = zstd::stream::read::Decoder::with_buffer(source);
    let capped = decoder.and_then(|mut decoder| {
        decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
        Ok(decoder)
    });
    capped.map_err(ImageError::Decompress)
}

impl Read for Decompressed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.given += count as u64;
        self.check().map_err(io::Error::other)?;
        Ok(count)
    }
}

/// Counts what was taken from the compressed side.
struct Counted<R> {
    inner: R,
    taken: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.taken.set(self.taken.get() + count as u64);
        Ok(count)
    }
}
