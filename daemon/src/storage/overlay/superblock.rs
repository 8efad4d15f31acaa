//! Reading the superblock of an image that is not mounted, or whose figures do not change: its layout, and what was free in it when it
//! was unmounted last. What it says is checked before it is used: the file may be damaged.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use super::geometry::{BLOCK, DESCRIPTOR, GROUP, INODE, Shape};

const PLACE: u64 = 1024;
const SIZE: usize = 1024;
const MAGIC: u64 = 0xEF53;
/// Something was found wrong, by the kernel or e2fsck.
const STATE_ERRORS: u64 = 2;
const SPREAD_TABLE: u64 = 0x10;
/// The journal has something that is to be played back.
const NEEDS_RECOVERY: u64 = 4;

/// A superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Superblock {
    /// The layout.
    pub(super) shape: Shape,
    /// Blocks that were free.
    pub(super) free_blocks: u64,
    /// Inodes that were free.
    pub(super) free_inodes: u64,
    /// Whether it was mounted ever.
    pub(super) is_used: bool,
    /// Whether it is mounted, or was when the host crashed: then what is free in it is as of the mount before.
    pub(super) is_open: bool,
    /// Whether errors were found in it.
    pub(super) has_errors: bool,
}

impl Superblock {
    /// Reads it. InvalidData: this is no layer, or not all of it.
    pub(super) fn read(image: &File) -> io::Result<Self> {
        let length = image.metadata()?.len();
        if length < PLACE + SIZE as u64 {
            return Err(damaged("it is too short for a file system"));
        }
        let mut bytes = [0; SIZE];
        image.read_exact_at(&mut bytes, PLACE)?;
        let superblock = Self::parse(&bytes)?;
        if length / BLOCK < superblock.shape.blocks {
            return Err(damaged("it is shorter than the file system in it"));
        }
        Ok(superblock)
    }

    fn parse(bytes: &[u8; SIZE]) -> io::Result<Self> {
        let half = |at: usize| u64::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
        let word = |at: usize| half(at) | half(at + 2) << 16;
        if half(0x38) != MAGIC {
            return Err(damaged("it has no ext4 in it"));
        }
        let fits = word(0x18) == u64::from((BLOCK / 1024).trailing_zeros())
            && word(0x20) == GROUP
            && half(0x58) == INODE
            && half(0xFE) == DESCRIPTOR;
        let shape = Shape {
            blocks: word(0x4) | word(0x150) << 32,
            inodes_per_group: word(0x28),
            reserved_table: half(0xCE),
            spread_from: (word(0x60) & SPREAD_TABLE != 0).then(|| word(0x104)),
            journal: (word(0x14C) | word(0x148) << 32) / BLOCK,
        };
        let is_sane = shape.blocks > 0
            && shape.blocks <= u64::MAX / BLOCK
            && (1..=GROUP).contains(&shape.inodes_per_group);
        if !fits || !is_sane {
            return Err(damaged("the ext4 in it is none that lodged makes"));
        }
        Ok(Self {
            shape,
            free_blocks: word(0xC) | word(0x158) << 32,
            free_inodes: word(0x10),
            // The count of mounts is set to zero by e2fsck, and goes back to zero by itself; when it was mounted last stays.
            is_used: half(0x34) > 0 || word(0x2C) > 0,
            is_open: word(0x60) & NEEDS_RECOVERY != 0,
            has_errors: half(0x3A) & STATE_ERRORS != 0,
        })
    }
}

fn damaged(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
