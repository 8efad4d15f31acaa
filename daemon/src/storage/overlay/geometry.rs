//! The arithmetic of ext4: what a file system of so many blocks keeps for itself, and how many it must have to leave what a
//! limit promises. Pure functions; no file is touched.

use crate::storage::driver::DiskLimit;

/// Bytes of a block. With 1 KiB, 20,000 small files took longer to make and to remove.
pub(super) const BLOCK: u64 = 4096;
/// Blocks of a group: as many as a bitmap of one block has bits.
pub(super) const GROUP: u64 = 8 * BLOCK;
/// Bytes of an inode: has room for nanoseconds and for the small attributes that an overlay sets.
pub(super) const INODE: u64 = 256;
/// Bytes of a group's descriptor.
pub(super) const DESCRIPTOR: u64 = 64;
/// An image larger than this is refused: 4 KiB blocks give the host's own ext4 files of less than 16 TiB.
pub(super) const IMAGE_MAX: u64 = 15 << 40;

const INODES_PER_BLOCK: u64 = BLOCK / INODE;
const DESCRIPTORS_PER_BLOCK: u64 = BLOCK / DESCRIPTOR;
const MIB: u64 = 1 << 20;
/// A journal of less is refused by mkfs; one of more only takes space on the host: it is written from end to end.
const JOURNAL_MIN: u64 = 4 * MIB;
const JOURNAL_MAX: u64 = 32 * MIB;
/// The part of a limit that its journal takes.
const JOURNAL_SHARE: u64 = 128;
/// How far the table of groups has room in place. Beyond that the kernel puts further parts elsewhere.
const GROWTH: u64 = 16;
/// How far mkfs.ext4 has it grow by itself.
const GROWTH_DEFAULT: u64 = 1024;
/// The blocks that mkfs.ext4 wants in a last group, beyond what the group keeps for itself; it drops a smaller one.
const LAST_GROUP_MIN: u64 = 64;
/// Directories of an empty layer, and what rounding may take.
const SLACK: u64 = 64;

/// How much larger than its limit an image is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// No larger: it grows when its limit does.
    Exact,
    /// Four times: for a lodged that may not resize what is mounted (no CAP_SYS_RESOURCE). What is beyond the limit is held
    /// back by the kernel, is a hole on the host, and lets the limit rise in use.
    Ahead,
}

impl Room {
    const fn times(self) -> u64 {
        match self {
            Self::Exact => 1,
            Self::Ahead => 4,
        }
    }
}

/// The layout of an ext4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Its blocks.
    pub(super) blocks: u64,
    /// Inodes of each group.
    pub(super) inodes_per_group: u64,
    /// Blocks that each copy of the table of groups has to grow into.
    pub(super) reserved_table: u64,
    /// From this block of the table on, it is spread over the groups that it describes.
    pub(super) spread_from: Option<u64>,
    /// Blocks of the journal.
    pub(super) journal: u64,
}

impl Shape {
    pub(super) const fn groups(&self) -> u64 {
        self.blocks.div_ceil(GROUP)
    }

    /// All its inodes.
    pub(super) const fn inodes(&self) -> u64 {
        self.groups() * self.inodes_per_group
    }

    /// Blocks that files can have: what statfs(2) gives as its size.
    pub(super) fn usable(&self) -> u64 {
        let kept: u64 = (0..self.groups()).map(|group| self.kept_in(group)).sum();
        self.blocks.saturating_sub(kept + self.journal)
    }

    /// Bytes that it keeps for itself: its tables, of which most are holes until there are as many files, and its journal.
    pub(super) fn metadata(&self) -> u64 {
        (self.blocks - self.usable()) * BLOCK
    }

    /// Blocks that a group keeps for itself: two bitmaps, inodes, and in some a copy of the superblock and the table.
    fn kept_in(&self, group: u64) -> u64 {
        let always = 2 + self.inodes_per_group / INODES_PER_BLOCK;
        let table = self.groups().div_ceil(DESCRIPTORS_PER_BLOCK);
        let whole = self.spread_from.map_or(table, |from| from.min(table));
        let copy = if has_copy(group) {
            1 + whole + self.reserved_table
        } else {
            0
        };
        let spread = self.spread_from.is_some_and(|from| {
            group / DESCRIPTORS_PER_BLOCK >= from
                && [0, 1, DESCRIPTORS_PER_BLOCK - 1].contains(&(group % DESCRIPTORS_PER_BLOCK))
        });
        always + copy + u64::from(spread)
    }

    /// This one with as many blocks as leave `usable` and have `inodes`, never fewer than it has.
    pub(super) fn grown_to(self, usable: u64, inodes: u64) -> Self {
        let mut grown = self;
        let groups = inodes.div_ceil(self.inodes_per_group);
        if groups > self.groups() {
            grown.blocks = groups * GROUP;
        }
        // Each round adds what is missing; what the added groups keep for themselves is missing in the next one.
        while grown.usable() < usable {
            grown.blocks += usable - grown.usable();
            grown.blocks = grown.blocks.max(grown.least_of_last_group());
        }
        grown
    }

    fn least_of_last_group(&self) -> u64 {
        let last = self.groups() - 1;
        last * GROUP + self.kept_in(last) + LAST_GROUP_MIN
    }
}

/// Groups 0, 1 and the powers of 3, 5 and 7 (sparse_super).
fn has_copy(group: u64) -> bool {
    let is_power = |base: u64| {
        let mut power = base;
        while power < group {
            power *= base;
        }
        power == group
    };
    group <= 1 || [3, 5, 7].into_iter().any(is_power)
}

/// What the kernel holds back in every ext4, so that what was written can be placed (ext4_calculate_resv_clusters).
pub(super) fn held_back(blocks: u64) -> u64 {
    (blocks / 50).min(4096)
}

/// Blocks that a limit means.
pub(super) const fn blocks_of(limit: DiskLimit) -> u64 {
    limit.bytes / BLOCK
}

/// Inodes that a limit means: never more than blocks, or files without content would take more of the host than the limit
/// on bytes says.
pub(super) fn inodes_of(limit: DiskLimit) -> u64 {
    limit.inodes.min(blocks_of(limit))
}

/// Blocks that files must find in an image, so that a limit can be held in it.
pub(super) fn needed(limit: DiskLimit) -> u64 {
    let blocks = blocks_of(limit);
    // The kernel takes its share of the image, which is somewhat larger than the limit.
    blocks + held_back(blocks + blocks / 2 + GROUP) + SLACK
}

/// Whether a limit can be held in an image.
pub(super) fn has_room_for(shape: &Shape, limit: DiskLimit) -> bool {
    let usable = shape.usable();
    usable >= blocks_of(limit) + held_back(usable) && shape.inodes() >= inodes_of(limit)
}

/// The image of a new layer.
pub(super) fn new_image(limit: DiskLimit, room: Room) -> Shape {
    let journal = (limit.bytes / JOURNAL_SHARE).clamp(JOURNAL_MIN, JOURNAL_MAX) / MIB * MIB;
    let usable = needed(limit) * room.times();
    let mut shape = Shape {
        blocks: usable,
        inodes_per_group: INODES_PER_BLOCK,
        reserved_table: 0,
        spread_from: None,
        journal: journal / BLOCK,
    };
    // The inodes take blocks, and blocks groups, over which the inodes are spread: settled after few rounds.
    loop {
        shape = shape.grown_to(usable, 0);
        let groups = shape.groups();
        let per_group = inodes_of(limit).div_ceil(groups);
        let before = shape;
        shape.inodes_per_group = per_group.next_multiple_of(INODES_PER_BLOCK).min(GROUP);
        shape.reserved_table = reserved_table(shape.blocks);
        if shape.groups() * shape.inodes_per_group >= inodes_of(limit) && shape == before {
            return shape;
        }
    }
}

/// The blocks for which the table of groups has room: what mkfs.ext4 is told.
pub(super) const fn growth_blocks(blocks: u64) -> u64 {
    blocks * GROWTH
}

/// What mkfs.ext4 makes of that.
fn reserved_table(blocks: u64) -> u64 {
    let table = |blocks: u64| blocks.div_ceil(GROUP).div_ceil(DESCRIPTORS_PER_BLOCK);
    let asked = table(growth_blocks(blocks)) - table(blocks);
    // Where what it is told comes to nothing it falls back to its default.
    let reserved = if asked > 0 {
        asked
    } else {
        table(blocks * GROWTH_DEFAULT).max(1) - table(blocks)
    };
    // As many as one block of the resize inode can name.
    reserved.min(BLOCK / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figures of dumpe2fs(8) for an image of mkfs.ext4.
    #[test]
    fn what_a_file_system_keeps_for_itself_is_what_e2fsprogs_says() {
        let shape = Shape {
            blocks: 2_700_000,
            inodes_per_group: 12_640,
            reserved_table: 18,
            spread_from: None,
            journal: 8192,
        };
        assert_eq!(shape.groups(), 83);
        assert_eq!(shape.inodes(), 1_049_120);
        assert_eq!(shape.usable(), 2_700_000 - 74_138);
    }

    #[test]
    fn an_image_has_room_for_its_limit_and_little_more() {
        const GIB: u64 = 1 << 30;
        for bytes in [
            64 * MIB,
            128 * MIB,
            129 * MIB,
            GIB,
            10 * GIB,
            1 << 40,
            3 << 40,
        ] {
            for inodes in [4096, 1 << 20, 1 << 31] {
                let limit = DiskLimit { bytes, inodes };
                let shape = new_image(limit, Room::Exact);
                assert!(shape.usable() >= needed(limit), "{limit:?}: {shape:?}");
                assert!(has_room_for(&shape, limit), "{limit:?}: {shape:?}");
                assert!(shape.inodes() >= inodes_of(limit), "{limit:?}: {shape:?}");
                let most = needed(limit) + needed(limit) / 50 + GROUP;
                assert!(shape.usable() <= most, "{limit:?}: {shape:?}");
                let more = inodes_of(limit) + 2 * INODES_PER_BLOCK * shape.groups();
                assert!(shape.inodes() <= more, "{limit:?}: {shape:?}");
            }
        }
    }

    #[test]
    fn a_shape_grows_to_what_is_asked_and_never_shrinks() {
        let limit = |bytes, inodes| DiskLimit { bytes, inodes };
        let small = new_image(limit(64 * MIB, 16_384), Room::Exact);
        let larger = small.grown_to(1 << 20, 0);
        assert!(larger.usable() >= 1 << 20);
        let more = small.grown_to(0, 100_000);
        assert!(more.inodes() >= 100_000);
        assert_eq!(larger.grown_to(1, 1), larger);
        // What it was made for is no reason to grow.
        assert_eq!(small.grown_to(small.usable(), small.inodes()), small);
    }
}
