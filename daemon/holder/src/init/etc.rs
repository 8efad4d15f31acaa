//! /etc/hostname, /etc/hosts and /etc/resolv.conf: the daemon's contents, bound over the image's files from the stage. They are set
//! up anew at each start; nothing is written into the image or into the sandbox's own layer but empty files to mount on.

use std::ffi::CStr;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd as _, BorrowedFd};

use lodge_kernel::mount::{Depth, attach, clone_mount};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, RenameFlags, openat, renameat2};
use nix::sys::stat::{Mode, SFlag, fstatat};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::Making;
use super::tree::open_below;
use crate::protocol::{Cause, errno_of, on};

/// Mounts the three files.
pub(super) fn files(making: &mut Making<'_>) -> Result<(), Cause> {
    let request = &making.init.request;
    let etc = open_below(making.root()?, "etc", OFlag::O_PATH | OFlag::O_DIRECTORY)
        .map_err(on("/etc"))?;
    let hostname = format!("{}\n", request.hostname);
    for (name, contents) in [
        (c"hostname", hostname.as_bytes()),
        (c"hosts", request.etc_hosts.as_slice()),
        (c"resolv.conf", request.etc_resolv_conf.as_slice()),
    ] {
        make_regular(etc.as_fd(), name)?;
        put(making.stage()?, etc.as_fd(), name, contents)?;
    }
    Ok(())
}

/// Makes sure that there is a regular file to mount on. A link (many images link resolv.conf) is replaced, never followed.
fn make_regular(etc: BorrowedFd<'_>, name: &CStr) -> Result<(), Cause> {
    let object = || on(format!("/etc/{}", name.to_string_lossy()));
    match fstatat(etc, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(stat) => match SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT {
            SFlag::S_IFREG => return Ok(()),
            SFlag::S_IFDIR => put_aside(etc, name).map_err(object())?,
            _ => unlinkat(etc, name, UnlinkatFlags::NoRemoveDir).map_err(object())?,
        },
        Err(Errno::ENOENT) => {}
        Err(errno) => return Err(object()(errno)),
    }
    let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
    openat(etc, name, flags, Mode::from_bits_truncate(0o644))
        .map(drop)
        .map_err(object())
}

/// Takes a directory out of the way. One with something in it is kept, under a name of the moment: whoever inside has guessed it has
/// this start fail, and not the next one. A sandbox that could be kept from starting by what is in its files could not be mended from
/// inside.
fn put_aside(etc: BorrowedFd<'_>, name: &CStr) -> nix::Result<()> {
    match unlinkat(etc, name, UnlinkatFlags::RemoveDir) {
        Err(Errno::ENOTEMPTY | Errno::EEXIST) => {}
        removed => return removed,
    }
    let now = clock_gettime(ClockId::CLOCK_REALTIME)?;
    let aside = format!(
        "{}.{}{:09}",
        name.to_string_lossy(),
        now.tv_sec(),
        now.tv_nsec()
    );
    renameat2(
        etc,
        name,
        etc,
        aside.as_str(),
        RenameFlags::RENAME_NOREPLACE,
    )
}

fn put(
    stage: BorrowedFd<'_>,
    etc: BorrowedFd<'_>,
    name: &CStr,
    contents: &[u8],
) -> Result<(), Cause> {
    let object = || on(format!("/etc/{}", name.to_string_lossy()));
    let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
    let file = openat(stage, name, flags, Mode::from_bits_truncate(0o644)).map_err(object())?;
    File::from(file)
        .write_all(contents)
        .map_err(|e| object()(errno_of(&e)))?;
    let copy = clone_mount(stage, name, Depth::One).map_err(object())?;
    attach(copy.as_fd(), etc, name).map_err(object())
}
