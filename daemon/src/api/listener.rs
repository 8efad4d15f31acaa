//! The unix socket that clients connect to: 0660, root and one group. Whoever may connect may run commands in every
//! sandbox. Should its file be removed under the daemon, it is made again.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::{Path, PathBuf};

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};

use super::connections::{Connection, House};
use crate::error::chain;

/// Owner and group may connect.
const SOCKET_MODE: u32 = 0o660;
/// Directories above the socket are made so that the group can reach it.
const DIR_MODE: u32 = 0o755;

/// How often it is looked whether the socket's file is still there.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Before the next connection is taken after one could not be, for want of descriptors or memory: it stays in the queue.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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

/// Where clients come in.
#[derive(Debug)]
pub struct Door {
    listener: UnixListener,
    plate: Arc<Plate>,
    group: String,
    looks: Interval,
    house: Arc<House>,
}

/// The socket's file, which says that there is a daemon: one that serves, that ends its calls, or that is about to serve.
/// Who is refused there waits for it; where there is no file nobody waits. It goes with the last holder.
#[derive(Debug)]
pub struct Plate {
    path: PathBuf,
    /// Device and inode; `None` once it is somebody else's to remove.
    file: Mutex<Option<(u64, u64)>>,
}

impl Plate {
    fn of(path: &Path) -> Result<Self, ListenError> {
        let file = file_of(path).map_err(|source| ListenError::Io {
            action: "look at",
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            path: path.to_owned(),
            file: Mutex::new(Some(file)),
        })
    }

    /// Leaves the file to who listens there next: the number of a file that it replaces may be that of its own.
    pub fn hand_over(self) {
        *self.file() = None;
    }

    fn file(&self) -> MutexGuard<'_, Option<(u64, u64)>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Plate {
    /// Removes the file, if it still is this one's.
    fn drop(&mut self) {
        let own = *self.file();
        if file_of(&self.path).is_ok_and(|file| Some(file) == own)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::debug!(%error, "socket not removed");
        }
    }
}

/// Says that a daemon is about to serve at `path`: until then clients are refused there, and wait. What is there already is
/// left alone. To be called within the runtime.
///
/// # Errors
/// See [`ListenError`].
pub fn announce(path: &Path, group: &str) -> Result<Option<Plate>, ListenError> {
    match file_of(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            drop(bind(path, group)?);
            Plate::of(path).map(Some)
        }
        _ => Ok(None),
    }
}

/// Listens at `path` for root and `group`. A socket that an earlier daemon left is replaced: this one holds the lock on
/// the state directory, and nobody answers at the old one. A group that does not exist leaves the socket to root. To be called within
/// the runtime.
///
/// # Errors
/// See [`ListenError`].
pub fn listen(path: &Path, group: &str) -> Result<Door, ListenError> {
    let listener = bind(path, group)?;
    let plate = Arc::new(Plate::of(path)?);
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    Ok(Door {
        listener,
        plate,
        group: group.to_owned(),
        looks,
        house: Arc::default(),
    })
}

impl Door {
    /// The socket's file: it stays for as long as this is held, also when nobody listens any more.
    pub fn plate(&self) -> Arc<Plate> {
        Arc::clone(&self.plate)
    }

    /// The next connection that is taken in.
    pub(crate) async fn next(&mut self) -> Connection {
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        if let Some(connection) = self.house.admit(stream) {
                            return connection;
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a connection could not be taken");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
                _ = self.looks.tick() => self.restore(),
            }
        }
    }

    /// Listens anew where the socket's file was removed. One that is another's is left alone.
    fn restore(&mut self) {
        let path = &self.plate.path;
        match file_of(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            _ => return,
        }
        let again = bind(path, &self.group).and_then(|listener| {
            let file = file_of(path).map_err(|source| ListenError::Io {
                action: "look at",
                path: path.clone(),
                source,
            })?;
            Ok((listener, file))
        });
        match again {
            Ok((listener, file)) => {
                tracing::warn!(socket = %path.display(), "the socket was gone and is there again");
                self.listener = listener;
                *self.plate.file() = Some(file);
            }
            Err(error) => {
                tracing::error!(error = %chain(&error), "the socket is gone and cannot be made again");
            }
        }
    }
}

fn file_of(path: &Path) -> io::Result<(u64, u64)> {
    let meta = fs::symlink_metadata(path)?;
    Ok((meta.dev(), meta.ino()))
}

fn bind(path: &Path, group: &str) -> Result<UnixListener, ListenError> {
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
        // As a killed daemon leaves it: its file is there, and nobody listens.
        drop(bind(&path, "root").expect("first"));
        let live = listen(&path, "root").expect("the first one is stale");
        assert!(matches!(
            listen(&path, "root"),
            Err(ListenError::InUse { .. })
        ));
        drop(live);
        assert!(!path.exists(), "a door that closes takes its file along");
    }

    #[tokio::test]
    async fn who_comes_before_or_after_the_serving_is_refused_and_not_told_that_nobody_is_there() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let path = temp.path().join("lodged.sock");
        let refused = || {
            let error = BlockingStream::connect(&path).expect_err("nobody listens");
            error.kind() == io::ErrorKind::ConnectionRefused
        };
        let announced = announce(&path, "root").expect("announced");
        let announced = announced.expect("nothing was there");
        assert!(refused(), "before");
        announced.hand_over();
        let door = listen(&path, "root").expect("listens");
        assert!(BlockingStream::connect(&path).is_ok());
        let plate = door.plate();
        drop(door);
        assert!(refused(), "after");
        drop(plate);
        assert!(!path.exists(), "nobody is there");
    }

    #[tokio::test]
    async fn a_socket_that_was_removed_is_made_again() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let path = temp.path().join("lodged.sock");
        let mut door = listen(&path, "root").expect("listens");
        fs::remove_file(&path).expect("removed");
        door.restore();
        let client = BlockingStream::connect(&path);
        assert!(client.is_ok(), "{client:?}");
        let _taken = door.next().await;
    }

    #[tokio::test]
    async fn what_took_the_sockets_place_is_left_alone() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let path = temp.path().join("lodged.sock");
        let mut door = listen(&path, "root").expect("listens");
        fs::remove_file(&path).expect("removed");
        fs::write(&path, "another's").expect("written");
        door.restore();
        drop(door);
        assert_eq!(fs::read_to_string(&path).expect("there"), "another's");
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
