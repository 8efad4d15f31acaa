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

use super::environment::SECRETS_MAX_BYTES;
use super::log::{StreamLog, errno_of};
use super::mask::{Masker, Patterns};
use super::output::{PIPE_LARGE, splice_once};
use super::secrets_fd;

/// The spool's first page holds how far it was consumed: two little-endian u64, the raw offset up to which bytes were
/// masked and the log's length with them. Raw bytes follow at their stream offset plus this.
const HEADER: u64 = 4096;
/// Most bytes that wait unmasked: one splice, and what the mask holds back.
const UNMASKED_MAX: u64 = PIPE_LARGE as u64 + SECRETS_MAX_BYTES as u64;
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
    /// off the log and masked again. It was in a holder's hands: checked like any input. Blocks.
    pub(super) fn resume(
        file: OwnedFd,
        log: Arc<StreamLog>,
        patterns: Arc<Patterns>,
    ) -> io::Result<Self> {
        let file = secrets_fd::regular_file(file)?;
        let mut header = [0; 16];
        let raw = file.metadata()?.len().saturating_sub(HEADER);
        if raw > 0 {
            file.read_exact_at(&mut header, 0)?;
        }
        let (masked, written) = header.split_at(8);
        let masked_to = le_u64(masked).min(raw);
        if raw - masked_to > UNMASKED_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "not the spool of a run",
            ));
        }
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use nix::unistd::pipe;

    use super::super::environment::Secret;
    use super::super::log::{BUDGET, Piece, Stream};
    use super::*;

    fn patterns() -> Arc<Patterns> {
        let value = Zeroizing::new("hunter2!".to_owned());
        Arc::new(
            Patterns::new(&[Secret {
                name: "T".to_owned(),
                value,
            }])
            .expect("small"),
        )
    }

    fn new_log(dir: &tempfile::TempDir) -> Arc<StreamLog> {
        Arc::new(StreamLog::new(
            &dir.path().join("run"),
            Stream::Stdout,
            BUDGET,
        ))
    }

    fn put(spool: &mut Spool, bytes: &[u8]) {
        let (read, write) = pipe().expect("pipe");
        File::from(write)
            .write_all(bytes)
            .expect("fits into the pipe");
        assert_eq!(
            spool.take_from(&read, 1 << 20).expect("spliced"),
            bytes.len()
        );
    }

    async fn text(log: &Arc<StreamLog>) -> String {
        match log.read(0, 1 << 20).await.expect("readable") {
            Piece::Data { bytes, .. } => String::from_utf8(bytes.to_vec()).expect("text"),
            _ => String::new(),
        }
    }

    /// All bytes that the memfd holds, header excepted.
    fn raw(file: &OwnedFd) -> Vec<u8> {
        let file = File::from(file.try_clone().expect("dup"));
        let len = file.metadata().expect("stat").len().saturating_sub(HEADER);
        let mut bytes = vec![0; usize::try_from(len).expect("small")];
        file.read_exact_at(&mut bytes, HEADER).expect("reads");
        bytes
    }

    #[tokio::test]
    async fn the_next_daemon_goes_on_in_the_middle_of_a_secret() {
        let dir = tempfile::tempdir().expect("tempdir");
        let log = new_log(&dir);
        let mut first = Spool::create(Arc::clone(&log), patterns()).expect("memfd");
        put(&mut first, b"one hunter2! two hunt");
        let kept = first.duplicate().expect("dup");
        assert_eq!(text(&log).await, "one «T» two ");
        drop((first, log));

        let log =
            StreamLog::reopen(&dir.path().join("run"), Stream::Stdout, BUDGET).expect("reopens");
        let log = Arc::new(log);
        let mut second = Spool::resume(kept, Arc::clone(&log), patterns()).expect("resumes");
        put(&mut second, b"er2! three");
        second.finish();
        assert_eq!(text(&log).await, "one «T» two «T» three");
    }

    #[tokio::test]
    async fn what_the_log_got_without_a_note_is_masked_again_and_not_doubled() {
        let dir = tempfile::tempdir().expect("tempdir");
        let log = new_log(&dir);
        let mut first = Spool::create(Arc::clone(&log), patterns()).expect("memfd");
        put(&mut first, b"noted ");
        // As if the daemon had died between the log and the note, with bytes in the spool that nobody masked.
        log.append(b"half-writ");
        first
            .file
            .write_all_at(b"hunter2! unnoted", HEADER + first.raw)
            .expect("writes");
        let kept = first.duplicate().expect("dup");
        drop((first, log));

        let log =
            StreamLog::reopen(&dir.path().join("run"), Stream::Stdout, BUDGET).expect("reopens");
        let log = Arc::new(log);
        Spool::resume(kept, Arc::clone(&log), patterns())
            .expect("resumes")
            .finish();
        assert_eq!(text(&log).await, "noted «T» unnoted");
    }

    #[test]
    fn a_spool_of_hostile_length_or_kind_is_refused() {
        let dir = tempfile::tempdir().expect("tempdir");
        let resumed = |file: OwnedFd| Spool::resume(file, new_log(&dir), patterns());
        let huge = File::from(memfd_create(c"test", MFdFlags::MFD_CLOEXEC).expect("memfd"));
        huge.set_len(1 << 40).expect("sparse");
        assert!(resumed(huge.into()).is_err());
        let (read, _write) = pipe().expect("pipe");
        assert!(resumed(read).is_err());
    }

    #[tokio::test]
    async fn nothing_raw_stays_after_the_end_and_little_before() {
        let dir = tempfile::tempdir().expect("tempdir");
        let mut spool = Spool::create(new_log(&dir), patterns()).expect("memfd");
        let kept = spool.duplicate().expect("dup");
        for _ in 0..10 {
            put(&mut spool, &b"hunter2!".repeat(4096));
        }
        let left = raw(&kept).iter().filter(|b| **b != 0).count();
        assert!(left < 4096, "{left} raw bytes wait");
        put(&mut spool, b"hunter2");
        spool.finish();
        assert!(raw(&kept).iter().all(|b| *b == 0));
    }
}
