//! How much all sandboxes together may take: what they have, and what the host has above its reserve. Held by the kernel as
//! the limit of the qgroup above all: in the second between two looks only others can take room of the host.

use std::sync::{Mutex, PoisonError};

use super::roots::Roots;
use crate::fault;
use crate::storage::StorageError;
use crate::storage::pool::{Pool, Size};

/// A difference of the limit that is not worth a change, in bytes, as the room runs out: each change is written to disk.
pub(super) const GRAIN: u64 = 16 << 20;
/// The same as a share of the room, while there is plenty.
const SHARE_OF_ROOM: u64 = 8;
/// What a pool keeps of itself at most, as a share of its size: btrfs that runs dry has no room for its bookkeeping.
const SHARE_OF_POOL: u64 = 16;

/// What there is to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    /// What may be written by sandboxes, and nothing of what is kept back.
    pub(super) bytes: u64,
    /// What is free in all.
    pub(super) free: u64,
    /// What the host has free.
    pub(super) host_free: u64,
    /// What the pool will take of that without being asked again: files in it have it, and it is not in the pool's file yet.
    pub(super) not_written: u64,
}

/// The limit of the qgroup above all.
#[derive(Debug)]
pub(super) struct Brake {
    reserve: u64,
    limit: Mutex<Option<u64>>,
}

impl Brake {
    pub(super) const fn new(reserve: u64) -> Self {
        Self {
            reserve,
            limit: Mutex::new(None),
        }
    }

    pub(super) const fn reserve(&self) -> u64 {
        self.reserve
    }

    pub(super) fn room(&self, pool: &Pool) -> Result<Room, StorageError> {
        let (size, host_free) = (pool.size()?, pool.host_free()?);
        // A directory has the host's file system itself, where that is not free any more.
        let not_written = match pool.on_host()? {
            Some(on_host) => size.used.saturating_sub(on_host),
            None => 0,
        };
        Ok(room(size, host_free, not_written, self.reserve))
    }

    /// Sets the limit to what it is to be, if that makes a difference.
    pub(super) fn adjust(&self, pool: &Pool, roots: &Roots) -> Result<(), StorageError> {
        let failed =
            |e: std::io::Error| StorageError::io("limit what all sandboxes take in", pool.dir(), e);
        let room = self.room(pool)?.bytes;
        // What is promised takes of the room, but the host does not see it yet: it is not to be counted on both sides.
        let used = roots.all_on_disk().map_err(failed)?;
        let wanted = used.saturating_add(room);
        let mut limit = self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_worth_it(*limit, wanted, room) {
            return Ok(());
        }
        fault::around("btrfs.set reserve", || roots.limit_all(wanted))
            .map_err(|errno| failed(errno.into()))?;
        *limit = Some(wanted);
        Ok(())
    }

    /// What all may still take under the limit that is held.
    pub(super) fn left(&self, roots: &Roots) -> std::io::Result<u64> {
        let limit = *self.limit.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(limit.unwrap_or(u64::MAX).saturating_sub(roots.all_used()?))
    }
}

fn room(size: Size, host_free: u64, not_written: u64, reserve: u64) -> Room {
    let pool_free = size.bytes.saturating_sub(size.used);
    let of_pool = pool_free.saturating_sub(reserve.min(size.bytes / SHARE_OF_POOL));
    let of_host = host_free.saturating_sub(not_written);
    Room {
        bytes: of_host.saturating_sub(reserve).min(of_pool),
        free: of_host.min(pool_free),
        host_free,
        not_written,
    }
}

fn is_worth_it(limit: Option<u64>, wanted: u64, room: u64) -> bool {
    limit.is_none_or(|limit| limit.abs_diff(wanted) > GRAIN.max(room / SHARE_OF_ROOM))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn nothing_is_taken_of_the_reserve_or_of_the_last_of_the_pool() {
        let room = |bytes, used, host_free, reserve| {
            super::room(Size { bytes, used }, host_free, 0, reserve)
        };
        let plenty = room(100 * GIB, 10 * GIB, 50 * GIB, GIB);
        assert_eq!(plenty.bytes, 49 * GIB);
        let full_pool = room(16 * GIB, 15 * GIB, 50 * GIB, 4 * GIB);
        assert_eq!(full_pool.bytes, 0);
        let full_host = room(100 * GIB, 10 * GIB, GIB, GIB);
        assert_eq!((full_host.bytes, full_host.free), (0, GIB));
        assert_eq!(room(GIB, 2 * GIB, 0, GIB).bytes, 0);
    }

    #[test]
    fn what_is_promised_to_files_is_no_room_of_the_host() {
        let size = Size {
            bytes: 100 * GIB,
            used: 30 * GIB,
        };
        assert_eq!(super::room(size, 25 * GIB, 20 * GIB, GIB).bytes, 4 * GIB);
        assert_eq!(super::room(size, 25 * GIB, 30 * GIB, GIB).bytes, 0);
    }

    #[test]
    fn a_limit_is_changed_where_that_counts() {
        assert!(is_worth_it(None, GIB, GIB));
        assert!(!is_worth_it(Some(100 * GIB), 101 * GIB, 80 * GIB));
        assert!(is_worth_it(Some(100 * GIB), 80 * GIB, 80 * GIB));
        assert!(is_worth_it(Some(GIB), GIB - GRAIN - 1, 0));
        assert!(!is_worth_it(Some(GIB), GIB - GRAIN, 0));
    }
}
