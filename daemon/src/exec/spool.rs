//! Output of a run with secrets: raw bytes go from the pipe into a memfd, masked bytes from there into the log.
//!
//! No raw byte reaches a disk, and none is only in our memory: the holder keeps the memfd, and the next daemon goes on
//! from the record at its start. At most a MiB waits there unmasked; then the command waits.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};
use zeroize::Zeroizing;

use super::log::{StreamLog, errno_of};
use super::mask::{Masker, Patterns};
use super::output::splice_once;

/// The spool's first page holds how far it was consumed: two little-endian u64, the raw offset up to which bytes were
/// masked and the log's length with them. Raw bytes follow at their stream offset plus this.
const HEADER: u64 = 4096;
/// Consumed bytes are wiped and freed in whole pages.
const PAGE: u64 = 4096;

/// The spool and the mask of one stream.
pub(super) struct Spool {
    file: File,
    log: Arc<StreamLog>,
    masker: Masker,
    /// Raw bytes of the stream so far.
    raw: u64,
    /// Up to here the spool's bytes were freed, in whole pages.
    freed: u64,
    /// Masked bytes on their way to the log; kept for its capacity.
    masked: Vec<u8>,
}

impl Spool {
    /// An empty spool for a new run.
    pub(super) fn create(log: Arc<StreamLog>, patterns: Arc<Patterns>) -> io::Result<Self> {
        let file = File::from(memfd_create(c"lodge-spool", MFdFlags::MFD_CLOEXEC)?);
        Ok(Self {
            file,
            log,
            masker: Masker::new(patterns),
            raw: 0,
            freed: 0,
            masked: Vec::new(),
        })
    }

    /// Goes on with the spool of an earlier daemon. What that one had written to the log without noting it here is cut
    /// off the log and masked again. Blocks.
    pub(super) fn resume(
        file: OwnedFd,
        log: Arc<StreamLog>,
        patterns: Arc<Patterns>,
    ) -> io::Result<Self> {
        let file = File::from(file);
        let mut header = [0; 16];
        let raw = file.metadata()?.len().saturating_sub(HEADER);
        if raw > 0 {
            file.read_exact_at(&mut header, 0)?;
        }
        let (masked, written) = header.split_at(8);
        let masked_to = le_u64(masked).min(raw);
        log.cut(le_u64(written))?;
        let mut spool = Self {
            file,
            log,
            masker: Masker::new(patterns),
            raw: masked_to,
            freed: masked_to / PAGE * PAGE,
            masked: Vec::new(),
        };
        spool.mask_up_to(raw)?;
        Ok(spool)
    }

    /// A duplicate of the spool, for the holder to keep.
    pub(super) fn duplicate(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }

    /// Whether it ever took a byte. If not, there is nothing to finish.
    pub(super) fn is_untouched(&self) -> bool {
        self.raw == 0
    }

    /// Takes up to `want` bytes out of the pipe and brings them, masked, to the log. Blocks.
    pub(super) fn take_from(&mut self, pipe: &OwnedFd, want: usize) -> nix::Result<usize> {
        let mut offset = (HEADER + self.raw).cast_signed();
        let count = splice_once(pipe, &self.file, Some(&mut offset), want)?;
        if count > 0 {
            self.mask_up_to(self.raw + count as u64)
                .map_err(|error| errno_of(&error))?;
        }
        Ok(count)
    }

    /// The stream has ended: what was held back is no value, and nothing raw is kept. Blocks.
    ///
    /// Not in a destructor: when the daemon ends before the run, the spool is the next daemon's.
    pub(super) fn finish(mut self) {
        if self.masker.held() > 0 {
            let mut rest = Vec::new();
            self.masker.flush(&mut rest);
            self.log.append(&rest);
        }
        if let Err(error) = self.note_consumed().and_then(|()| self.wipe()) {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "a spool could not be emptied"
            );
        }
    }

    /// Frees every page but the header.
    fn wipe(&self) -> io::Result<()> {
        let len = self.file.metadata()?.len();
        if len > HEADER {
            free(&self.file, HEADER, len - HEADER)?;
        }
        Ok(())
    }

    fn mask_up_to(&mut self, raw: u64) -> io::Result<()> {
        let count = usize::try_from(raw - self.raw).map_err(io::Error::other)?;
        if count == 0 {
            return Ok(());
        }
        let mut bytes = Zeroizing::new(vec![0; count]);
        self.file.read_exact_at(&mut bytes, HEADER + self.raw)?;
        self.masked.clear();
        self.masker.push(&bytes, &mut self.masked);
        self.raw = raw;
        self.log.append(&self.masked);
        self.note_consumed()
    }

    /// Notes how far the log has come, then frees what it has. In this order: a crash in between repeats nothing.
    fn note_consumed(&mut self) -> io::Result<()> {
        let consumed = self.raw - self.masker.held() as u64;
        let mut header = [0; 16];
        header[..8].copy_from_slice(&consumed.to_le_bytes());
        header[8..].copy_from_slice(&self.log.len().to_le_bytes());
        self.file.write_all_at(&header, 0)?;
        let free_to = consumed / PAGE * PAGE;
        if free_to > self.freed {
            free(&self.file, HEADER + self.freed, free_to - self.freed)?;
            self.freed = free_to;
        }
        Ok(())
    }
}

fn free(file: &File, start: u64, len: u64) -> io::Result<()> {
    let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    Ok(fallocate(
        file,
        mode,
        start.cast_signed(),
        len.cast_signed(),
    )?)
}

fn le_u64(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}
