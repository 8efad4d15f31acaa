//! The holders' sockets: the directory that they lie in, and the listeners that are handed to new holders.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};

use super::error::HolderError;

/// Connections that may wait at a holder's socket: there is one daemon.
const BACKLOG: i32 = 4;
/// Only root may reach a holder; who may reach what is beside that directory is decided there.
const DIR_MODE: u32 = 0o700;
const PARENT_MODE: u32 = 0o755;

/// Makes the directory of the holders' sockets, and what is missing above it.
///
/// # Errors
/// The host's.
pub fn make_dir(dir: &Path) -> io::Result<()> {
    let builder = |mode| {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(mode);
        builder
    };
    if let Some(parent) = dir.parent() {
        builder(PARENT_MODE).create(parent)?;
    }
    builder(DIR_MODE).create(dir)
}

/// Binds the socket on which the next daemon finds a holder. A stale one of an earlier start is replaced: the caller holds the state
/// directory's lock, and knows that this sandbox has no holder. A directory that somebody removed is made again.
pub(super) fn listen_at(path: &Path) -> Result<OwnedFd, HolderError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(HolderError::os("remove the holder's old socket")(error));
        }
        _ => {}
    }
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
        .map_err(HolderError::os("make the holder's socket"))?;
    let address = UnixAddr::new(path).map_err(HolderError::os("name the holder's socket"))?;
    let bound = match bind(listener.as_raw_fd(), &address) {
        Err(Errno::ENOENT) => {
            let dir = path.parent().unwrap_or(path);
            make_dir(dir).map_err(HolderError::os("make the directory of the holder's socket"))?;
            tracing::warn!(
                "the directory of the holders' sockets was gone and is made again; \
                 a sandbox whose socket went with it is not found after a restart until it is stopped and started"
            );
            bind(listener.as_raw_fd(), &address)
        }
        bound => bound,
    };
    bound.map_err(HolderError::os("bind the holder's socket"))?;
    let backlog =
        Backlog::new(BACKLOG).map_err(HolderError::os("listen on the holder's socket"))?;
    listen(&listener, backlog).map_err(HolderError::os("listen on the holder's socket"))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_directory_that_is_gone_is_made_again_for_root_alone() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let dir = temp.path().join("lodge/holders");
        let first = listen_at(&dir.join("a.sock")).expect("made");
        std::fs::remove_dir_all(temp.path().join("lodge")).expect("wiped");
        let second = listen_at(&dir.join("b.sock")).expect("made again");
        let mode = std::fs::metadata(&dir).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, DIR_MODE);
        drop((first, second));
    }
}
