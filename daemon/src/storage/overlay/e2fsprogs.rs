//! The programs that make, mend and resize an ext4 that is not mounted. Only images of our own are given to them: their
//! structures were written by mkfs.ext4 and the kernel alone.
//!
//! A program outlives a daemon that is killed meanwhile, and two that write to one image destroy it. So each has a lock on the
//! image as its standard input, which ends with it; whoever mounts the image or gives it to another program looks for that.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::geometry::{BLOCK, GROUP, INODE, Shape, growth_blocks};
use crate::storage::driver::StorageError;
use crate::storage::program;

/// What the driver needs.
pub const PROGRAMS: [&str; 3] = ["mkfs.ext4", "e2fsck", "resize2fs"];
/// What a layer has, whatever the host's own mke2fs.conf says: all of it is known to kernels from 4.18 on.
const FEATURES: &str = "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,\
                        large_file,huge_file,dir_nlink,extra_isize,metadata_csum";
/// Inode tables and the journal are not zeroed: a new file is nothing but zeros, and each zero written would be a block of it.
const EXTENDED: &str = "lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0";
/// e2fsck(8): nothing was wrong, or all of it was mended.
const MENDED: i32 = 1;

/// Makes an ext4 of this shape in the empty file `image`, with the content of `tree`.
pub(super) fn make(image: &Path, shape: &Shape, tree: &Path) -> Result<(), StorageError> {
    let inodes = shape.groups() * shape.inodes_per_group;
    let extended = format!("{EXTENDED},resize={}", growth_blocks(shape.blocks));
    let mut command = command("mkfs.ext4")?;
    command
        .args(["-q", "-F", "-m", "0", "-e", "remount-ro", "-O", FEATURES])
        .args(["-b", &BLOCK.to_string()])
        .args(["-g", &GROUP.to_string()])
        .args(["-I", &INODE.to_string()])
        .args(["-N", &inodes.to_string()])
        .args(["-J", &format!("size={}", (shape.journal * BLOCK) >> 20)])
        .args(["-E", &extended])
        .args([OsStr::new("-d"), tree.as_os_str(), image.as_os_str()])
        .arg(shape.blocks.to_string());
    run(command, image, "make a file system in", 0)
}

/// Fails unless an image that is not mounted is without fault. Changes nothing.
pub(super) fn check(image: &Path) -> Result<(), StorageError> {
    let mut command = command("e2fsck")?;
    command.args(["-f", "-n"]).arg(image);
    run(command, image, "check the file system in", 0)
}

/// Plays back the journal of an image that is not mounted, and mends what can be mended without a question.
pub(super) fn mend(image: &Path) -> Result<(), StorageError> {
    let mut command = command("e2fsck")?;
    command.args(["-f", "-p"]).arg(image);
    run(command, image, "mend the file system in", MENDED)
}

/// Gives a mended image that is not mounted as many blocks as its file has room for.
pub(super) fn resize(image: &Path, blocks: u64) -> Result<(), StorageError> {
    let mut command = command("resize2fs")?;
    command.arg(image).arg(blocks.to_string());
    run(command, image, "resize the file system in", 0)
}

/// Fails unless the programs are there.
pub(super) fn are_there() -> Result<(), StorageError> {
    PROGRAMS.iter().try_for_each(|name| find(name).map(drop))
}

fn find(name: &str) -> Result<PathBuf, StorageError> {
    program::find(name).ok_or_else(|| missing(name))
}

fn missing(name: &str) -> StorageError {
    StorageError::Unfit {
        what: format!("{name} is not there, and the overlay storage driver needs it"),
        hint: "install e2fsprogs",
    }
}

fn command(name: &str) -> Result<Command, StorageError> {
    let mut command = Command::new(find(name)?);
    command
        .env_clear()
        // Features and sizes are all given; a host's defaults must not add to them.
        .env("MKE2FS_CONFIG", "/dev/null");
    Ok(command)
}

/// Has the image for one program alone, until this and the program are gone.
///
/// # Errors
/// While a program is at work on it, or somebody mounts it.
pub(super) fn locked(image: &Path) -> Result<Flock<File>, StorageError> {
    lock(image, FlockArg::LockExclusiveNonblock)
}

/// Has no program get the image until this is dropped: for who mounts it.
///
/// # Errors
/// While a program is at work on it.
pub(super) fn kept_from_programs(image: &Path) -> Result<Flock<File>, StorageError> {
    lock(image, FlockArg::LockSharedNonblock)
}

fn lock(image: &Path, how: FlockArg) -> Result<Flock<File>, StorageError> {
    let file = File::open(image).map_err(|e| StorageError::io("open", image, e))?;
    Flock::lock(file, how).map_err(|(_, errno)| {
        let source = match errno {
            Errno::EWOULDBLOCK => io::Error::new(
                io::ErrorKind::ResourceBusy,
                "e2fsck or resize2fs of an earlier lodged is still at work on it: try again when it has ended",
            ),
            other => other.into(),
        };
        StorageError::io("have to ourselves", image, source)
    })
}

fn run(
    mut command: Command,
    image: &Path,
    action: &'static str,
    worst: i32,
) -> Result<(), StorageError> {
    let lock = locked(image)?;
    let inherited = lock.try_clone();
    command.stdin(inherited.map_err(|e| StorageError::io("lock", image, e))?);
    let output = command.output();
    let name = command.get_program().to_string_lossy();
    match output {
        Ok(output) if output.status.code().is_some_and(|code| code <= worst) => Ok(()),
        Ok(output) => {
            let failure = program::failure(&name, &output);
            Err(StorageError::io(action, image, failure))
        }
        Err(error) => Err(StorageError::io(action, image, error)),
    }
}
