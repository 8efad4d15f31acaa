//! The unix socket that clients connect to: 0660, root and one group. Whoever may connect may run commands in every
//! sandbox.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

/// Owner and group may connect.
const SOCKET_MODE: u32 = 0o660;
/// Directories above the socket are made so that the group can reach it.
const DIR_MODE: u32 = 0o755;

/// A socket could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another process answers there.
    #[error("{} is in use: another process serves it", path.display())]
    InUse {
        /// The socket's path.
        path: PathBuf,
    },
    /// Something else is at that path.
    #[error("{} is there already and is not a socket", path.display())]
    NotASocket {
        /// The socket's path.
        path: PathBuf,
    },
    /// The host refused it.
    #[error("{action} {}", path.display())]
    Io {
        /// What was done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// Listens at `path` for root and `group`. A socket that an earlier daemon left is replaced: this one holds the lock on
/// the state directory, and nobody answers at the old one. A group that does not exist leaves the socket to root.
pub fn listen(path: &Path, group: &str) -> Result<UnixListener, ListenError> {
    let failed = |action| {
        let path = path.to_owned();
        move |source| ListenError::Io {
            action,
            path,
            source,
        }
    };
    make_parent(path).map_err(failed("create the directory of"))?;
    clear(path)?;
    // Until the mode is set below, only its owner may connect: that takes write permission on the socket, which the
    // usual umask keeps from others.
    let listener = UnixListener::bind(path).map_err(failed("listen at"))?;
    match group_id(Path::new("/etc/group"), group).map_err(failed("look up the group of"))? {
        Some(gid) => std::os::unix::fs::chown(path, Some(0), Some(gid))
            .map_err(failed("give to its group"))?,
        None => tracing::warn!(group, "no such group; only root may use the socket"),
    }
    fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE))
        .map_err(failed("set the mode of"))?;
    Ok(listener)
}

fn make_parent(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    match path.parent() {
        Some(dir) => fs::DirBuilder::new()
            .recursive(true)
            .mode(DIR_MODE)
            .create(dir),
        None => Ok(()),
    }
}

/// Removes a socket at which nobody answers.
fn clear(path: &Path) -> Result<(), ListenError> {
    let path_buf = || path.to_owned();
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => {
            return Err(ListenError::Io {
                action: "look at",
                path: path_buf(),
                source,
            });
        }
        Ok(meta) if !meta.file_type().is_socket() => {
            return Err(ListenError::NotASocket { path: path_buf() });
        }
        Ok(_) => {}
    }
    if BlockingStream::connect(path).is_ok() {
        return Err(ListenError::InUse { path: path_buf() });
    }
    fs::remove_file(path).map_err(|source| ListenError::Io {
        action: "remove",
        path: path_buf(),
        source,
    })
}

/// The id of a local group; a name service is not asked, since the daemon must start without one.
fn group_id(file: &Path, name: &str) -> io::Result<Option<u32>> {
    let text = match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        other => other?,
    };
    Ok(text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name))
            .then(|| fields.nth(1)?.parse().ok())
            .flatten()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let path = temp.path().join("run/lodged.sock");
        drop(listen(&path, "root").expect("first"));
        let live = listen(&path, "root").expect("the first one is stale");
        assert!(matches!(
            listen(&path, "root"),
            Err(ListenError::InUse { .. })
        ));
        drop(live);
    }

    #[tokio::test]
    async fn what_is_not_a_socket_is_left_alone() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let path = temp.path().join("lodged.sock");
        fs::write(&path, "precious").expect("file");
        assert!(matches!(
            listen(&path, "root"),
            Err(ListenError::NotASocket { .. })
        ));
        assert_eq!(fs::read_to_string(&path).expect("still there"), "precious");
    }

    #[tokio::test]
    async fn the_socket_is_for_owner_and_group_alone() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let path = temp.path().join("lodged.sock");
        let _listener = listen(&path, "no-such-group").expect("listens for root alone");
        let mode = fs::metadata(&path).expect("stat").permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
    }

    #[test]
    fn a_group_is_found_by_its_whole_name() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let file = temp.path().join("group");
        fs::write(&file, "lodgers:x:7:\nlodge:x:8:a,b\nbroken\n").expect("file");
        assert_eq!(group_id(&file, "lodge").expect("read"), Some(8));
        assert_eq!(group_id(&file, "lod").expect("read"), None);
    }
}
