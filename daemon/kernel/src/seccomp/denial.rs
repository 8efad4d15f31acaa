//! Whether a program refuses what somebody relies on it for: asked of the program itself, not of the table that it is from.

use super::Program;
use super::interpreter::{Data, run};

const AUDIT_ARCH_X86_64: u32 = 0xC000_003E;
const RET_ALLOW: u32 = 0x7FFF_0000;
/// The magic byte of btrfs, in its place.
const BTRFS: u32 = 0x9400;
/// Directions of an ioctl, in their place: none, write, read, both.
const DIRECTIONS: [u32; 4] = [0, 0x4000_0000, 0x8000_0000, 0xC000_0000];
/// Sizes of the arguments that btrfs has, in bytes, and some that it has not.
const SIZES: [u32; 12] = [0, 4, 8, 16, 24, 32, 48, 112, 504, 1024, 4096, 8192];
/// FICLONE, FICLONERANGE and FIDEDUPERANGE have the magic byte of btrfs, and are the generic calls of every file system.
const GENERIC: [u32; 3] = [0x4004_9409, 0x4020_940D, 0xC018_9436];

/// Whether whoever runs under this program can call nothing of btrfs: above all, make no subvolumes and snapshots, which would
/// be outside of every limit. Copies by reference are no such thing.
#[must_use]
pub fn denies_btrfs(program: &Program) -> bool {
    let requests = DIRECTIONS.into_iter().flat_map(|direction| {
        SIZES.into_iter().flat_map(move |size| {
            (0..=0xFF).map(move |number| direction | size << 16 | BTRFS | number)
        })
    });
    requests
        .filter(|request| !GENERIC.contains(request))
        .all(|request| !allows_ioctl(program, request))
}

fn allows_ioctl(program: &Program, request: u32) -> bool {
    let data = Data {
        number: u32::try_from(libc::SYS_ioctl).expect("system call numbers are small"),
        architecture: AUDIT_ARCH_X86_64,
        arguments: [0, u64::from(request), 0, 0, 0, 0],
    };
    run(program.instructions(), &data).value == RET_ALLOW
}

#[cfg(test)]
mod tests {
    use super::super::{base_program, run_program};
    use super::*;

    #[test]
    fn the_program_of_sandboxes_denies_btrfs_and_another_one_does_not() {
        assert!(denies_btrfs(&base_program()));
        // It is about clone3 alone.
        assert!(!denies_btrfs(&run_program()));
        for request in GENERIC {
            assert!(allows_ioctl(&base_program(), request), "{request:x}");
        }
    }
}
