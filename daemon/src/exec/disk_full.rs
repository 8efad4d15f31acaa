//! Where a sandbox had no room left when a command had ended: what PID 1 saw of its file systems, and what the storage driver
//! says of the sandbox's own limit where that is not one of a file system.
//!
//! Whether this command filled it nobody can tell: another run of the sandbox may have, or an earlier one.

use lodge_holder::ROOM;
use lodge_proto::holder::NoRoom;

use super::end::DiskFullPlace;
use crate::holder::Exited;
use crate::storage::DiskUsage;

/// What PID 1 told. It is hostile: each place counts once, and what is no place not at all.
pub(super) fn told(exited: &Exited) -> Vec<DiskFullPlace> {
    let place = |word: NoRoom| match word {
        NoRoom::Root => Some(DiskFullPlace::Root),
        NoRoom::RootInodes => Some(DiskFullPlace::RootInodes),
        NoRoom::Shm => Some(DiskFullPlace::Shm),
        NoRoom::Unspecified => None,
    };
    sorted(exited.no_room().filter_map(place))
}

/// The same, with what the storage driver says.
pub(super) fn seen(exited: &Exited, usage: &DiskUsage) -> Vec<DiskFullPlace> {
    let bytes_alone = DiskUsage {
        inodes: None,
        ..*usage
    };
    let inodes_alone = DiskUsage {
        bytes: None,
        ..*usage
    };
    let bytes = bytes_alone.is_full(ROOM).then_some(DiskFullPlace::Root);
    let inodes = inodes_alone.is_full(0).then_some(DiskFullPlace::RootInodes);
    sorted(told(exited).into_iter().chain(bytes).chain(inodes))
}

fn sorted(places: impl Iterator<Item = DiskFullPlace>) -> Vec<DiskFullPlace> {
    let mut all = Vec::new();
    for place in places {
        if !all.contains(&place) {
            all.push(place);
        }
    }
    all.sort_unstable();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn exited(no_room: Vec<i32>) -> Exited {
        Exited {
            no_room,
            ..Exited::default()
        }
    }

    fn usage(bytes: u64, inodes: u64) -> DiskUsage {
        DiskUsage {
            bytes: Some(bytes),
            limit_bytes: Some(GIB),
            inodes: Some(inodes),
            inodes_limit: Some(4096),
        }
    }

    #[test]
    fn a_hostile_word_is_no_more_than_three_places() {
        let words = [9, 3, 0, 1, -1, i32::MAX, 2].repeat(10_000);
        assert_eq!(
            told(&exited(words)),
            [
                DiskFullPlace::Root,
                DiskFullPlace::RootInodes,
                DiskFullPlace::Shm
            ]
        );
    }

    #[test]
    fn the_drivers_limit_counts_where_the_file_system_has_room() {
        let nothing = exited(Vec::new());
        assert_eq!(seen(&nothing, &usage(GIB - ROOM, 4095)), []);
        assert_eq!(
            seen(&nothing, &usage(GIB - ROOM + 1, 1)),
            [DiskFullPlace::Root]
        );
        assert_eq!(seen(&nothing, &usage(1, 4096)), [DiskFullPlace::RootInodes]);
        assert_eq!(seen(&nothing, &DiskUsage::default()), []);
    }

    #[test]
    fn what_both_say_is_told_once() {
        let shm_and_root = exited(vec![NoRoom::Shm.into(), NoRoom::Root.into()]);
        assert_eq!(
            seen(&shm_and_root, &usage(GIB, 1)),
            [DiskFullPlace::Root, DiskFullPlace::Shm]
        );
    }
}
