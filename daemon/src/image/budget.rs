//! How much one import may use, and how far it is.
//!
//! Every bound of an archive as a whole is kept here; bounds of one entry are kept by the parser. An observer is
//! told of each step and may stop the import.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::sync::Arc;

use rustix::fs::fstatvfs;

use super::ImageError;

const MIB: u64 = 1024 * 1024;
const GIB: u64 = 1024 * MIB;

/// Bytes between two looks at the disk's free space.
const DISK_CHECK_EVERY: u64 = 64 * MIB;
/// Bytes between two calls of the observer inside one large file.
const REPORT_EVERY: u64 = MIB;

/// The bounds of one import.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of the archive as it was sent. 16 GiB: larger than any image that is meant to be copied about.
    pub archive_bytes: u64,
    /// Bytes of one decompressed stream, headers included, and of all files of an image. 64 GiB.
    pub unpacked_bytes: u64,
    /// Entries of all layers. A full desktop has about 300,000 files.
    pub entries: u64,
    /// How many times a stream may expand once it is past `ratio_free_bytes`. Root file systems reach 3 to 10.
    pub ratio: u64,
    /// Bytes that may come out of a stream before its ratio counts, so that small images of zeros are fine.
    pub ratio_free_bytes: u64,
    /// Free bytes that the disk must keep, so that an import never fills the host.
    pub disk_reserve_bytes: u64,
    /// Bytes of directory names kept until the end, for the times that are set last.
    pub directory_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            archive_bytes: 16 * GIB,
            unpacked_bytes: 64 * GIB,
            entries: 2_000_000,
            ratio: 200,
            ratio_free_bytes: 64 * MIB,
            disk_reserve_bytes: GIB,
            directory_bytes: 64 * MIB,
        }
    }
}

/// What an import is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Taking the archive in.
    Receiving,
    /// Making a compressed archive of layers seekable.
    Decompressing,
    /// Reading it once to see whether it is here already.
    Checking,
    /// Writing files.
    Unpacking,
    /// Waiting for the disk.
    Syncing,
}

impl Stage {
    /// The stage's name for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Receiving => "receiving",
            Self::Decompressing => "decompressing",
            Self::Checking => "checking",
            Self::Unpacking => "unpacking",
            Self::Syncing => "syncing",
        }
    }
}

/// How far an import is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub stage: Stage,
    /// Bytes handled in this stage.
    pub bytes: u64,
    /// Entries unpacked so far.
    pub entries: u64,
}

/// Hears of each step; `Break` stops the import. It is called often and must be quick.
pub type Observer<'a> = dyn FnMut(Progress) -> ControlFlow<()> + 'a;

/// What is free on the disk that is below the one of the images, where their file system lies in a sparse file of it.
#[derive(Clone)]
pub struct Beneath(Arc<Look>);

type Look = dyn Fn() -> io::Result<Option<DiskRoom>> + Send + Sync;

/// How much room a disk has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskRoom {
    /// Bytes that are free, those excluded that are promised already.
    pub free_bytes: u64,
    /// Bytes that are to be left free.
    pub reserve_bytes: u64,
}

impl Beneath {
    /// One that is asked each time. None: there is no such disk.
    pub fn new(look: impl Fn() -> io::Result<Option<DiskRoom>> + Send + Sync + 'static) -> Self {
        Self(Arc::new(look))
    }
}

impl fmt::Debug for Beneath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Beneath")
    }
}

impl DiskRoom {
    fn of(file: &File, reserve_bytes: u64) -> io::Result<Self> {
        let stat = fstatvfs(file)?;
        Ok(Self {
            free_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
            reserve_bytes,
        })
    }

    /// Refuses where no more than the reserve would be left.
    fn check(self) -> Result<(), ImageError> {
        // One more stretch is written before the next look.
        if self.free_bytes < self.reserve_bytes.saturating_add(DISK_CHECK_EVERY) {
            return Err(ImageError::DiskReserve {
                reserve: self.reserve_bytes,
            });
        }
        Ok(())
    }
}

/// What one import has used of its limits.
pub(super) struct Budget<'a> {
    limits: Limits,
    disk: &'a File,
    beneath: Option<&'a Beneath>,
    observer: &'a mut Observer<'a>,
    now: Progress,
    files: u64,
    until_report: u64,
    until_disk_check: u64,
}

impl<'a> Budget<'a> {
    /// `disk` is any file on the disk that is written to, `beneath` the disk below that.
    pub(super) fn new(
        limits: Limits,
        disk: &'a File,
        beneath: Option<&'a Beneath>,
        observer: &'a mut Observer<'a>,
    ) -> Self {
        let now = Progress {
            stage: Stage::Unpacking,
            bytes: 0,
            entries: 0,
        };
        Self {
            limits,
            disk,
            beneath,
            observer,
            now,
            files: 0,
            until_report: 0,
            until_disk_check: 0,
        }
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Begins a stage; its byte count starts at zero.
    pub(super) fn stage(&mut self, stage: Stage) -> Result<(), ImageError> {
        self.now = Progress {
            stage,
            bytes: 0,
            entries: self.now.entries,
        };
        self.report()
    }

    /// Counts one entry.
    pub(super) fn entry(&mut self) -> Result<(), ImageError> {
        self.now.entries += 1;
        if self.now.entries > self.limits.entries {
            return Err(ImageError::Limit {
                what: "entries",
                limit: self.limits.entries,
            });
        }
        self.report()
    }

    /// Counts a file's size before it is written, holes included: a copy of it may have none.
    pub(super) fn file(&mut self, size: u64) -> Result<(), ImageError> {
        self.files = self.files.saturating_add(size);
        if self.files > self.limits.unpacked_bytes {
            let limit = self.limits.unpacked_bytes;
            return Err(ImageError::Limit {
                what: "bytes in its files",
                limit,
            });
        }
        Ok(())
    }

    /// Counts bytes that are about to be written.
    pub(super) fn written(&mut self, count: u64) -> Result<(), ImageError> {
        if self.until_disk_check < count {
            check_disk(self.disk, self.beneath, &self.limits)?;
            self.until_disk_check = DISK_CHECK_EVERY;
        }
        self.until_disk_check = self.until_disk_check.saturating_sub(count);
        self.read(count)
    }

    /// Counts bytes that are only looked at.
    pub(super) fn read(&mut self, count: u64) -> Result<(), ImageError> {
        self.now.bytes += count;
        if self.until_report < count {
            self.until_report = REPORT_EVERY;
            self.report()?;
        }
        self.until_report = self.until_report.saturating_sub(count);
        Ok(())
    }

    fn report(&mut self) -> Result<(), ImageError> {
        match (self.observer)(self.now) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(ImageError::Cancelled),
        }
    }
}

/// Counts what is read through it as looked at, and so stops with an [`ImageError`] inside the `io::Error` when nobody
/// wants the import any more.
pub(super) struct Watched<'b, 'a, R> {
    inner: R,
    budget: &'b mut Budget<'a>,
}

impl<'b, 'a, R> Watched<'b, 'a, R> {
    pub(super) fn new(inner: R, budget: &'b mut Budget<'a>) -> Self {
        Self { inner, budget }
    }
}

impl<R: Read> Read for Watched<'_, '_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.budget.read(count as u64).map_err(io::Error::other)?;
        Ok(count)
    }
}

/// Refuses if the disk of `file`, or the one beneath, has less than its reserve left.
pub(super) fn check_disk(
    file: &File,
    beneath: Option<&Beneath>,
    limits: &Limits,
) -> Result<(), ImageError> {
    let failed = |e| ImageError::io("look at the disk of", "images", e);
    let own = DiskRoom::of(file, limits.disk_reserve_bytes).map_err(failed)?;
    own.check()?;
    let Some(Beneath(look)) = beneath else {
        return Ok(());
    };
    look().map_err(failed)?.map_or(Ok(()), DiskRoom::check)
}
