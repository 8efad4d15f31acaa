//! An open cgroup directory: every call goes by its descriptor, every error carries its path.

use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, fstatat, mkdirat};
use nix::unistd::{Uid, UnlinkatFlags, fchownat, read, unlinkat, write};

use super::error::{Error, Result};

const GROUP_MODE: Mode = Mode::from_bits_truncate(0o755);
/// The longest control file read here (`memory.stat` is not among them) is well below one page.
const FILE_BYTES: usize = 4096;
/// The kernel's bound on one path component.
const NAME_BYTES: usize = 255;

/// A cgroup directory that is kept open.
#[derive(Debug)]
pub(super) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

impl Directory {
    /// Opens an existing group by its absolute path.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let fd = nix::fcntl::open(path, flags, Mode::empty())
            .map_err(|source| file_error("open", path.into(), source))?;
        Ok(Self {
            fd,
            path: path.into(),
        })
    }

    /// Where it is, for messages and for cgroups-rs.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Its descriptor.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Opens a group below this one.
    pub(super) fn child(&self, name: &str) -> Result<Self> {
        let fd = self.open_at(name, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
        Ok(Self {
            fd,
            path: self.path.join(name),
        })
    }

    /// Makes a new group below this one; an existing one is an error.
    pub(super) fn create(&self, name: &str) -> Result<()> {
        mkdirat(&self.fd, name, GROUP_MODE).map_err(|source| self.error("create", name, source))
    }

    /// Makes a new group below this one and opens it.
    pub(super) fn create_child(&self, name: &str) -> Result<Self> {
        self.create(name)?;
        self.child(name)
    }

    /// Opens a group below this one, making it if it is missing.
    pub(super) fn ensure_child(&self, name: &str) -> Result<Self> {
        match self.create(name) {
            Err(error) if error.errno() != Some(Errno::EEXIST) => Err(error),
            _ => self.child(name),
        }
    }

    /// Opens a control file or directory, close-on-exec.
    pub(super) fn open_at(&self, name: &str, flags: OFlag) -> Result<OwnedFd> {
        openat(
            &self.fd,
            name,
            flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW,
            Mode::empty(),
        )
        .map_err(|source| self.error("open", name, source))
    }

    /// Reads a small control file.
    pub(super) fn read(&self, name: &str) -> Result<String> {
        let fd = self.open_at(name, OFlag::O_RDONLY)?;
        let mut text = [0; FILE_BYTES];
        let length = read(&fd, &mut text).map_err(|source| self.error("read", name, source))?;
        Ok(String::from_utf8_lossy(&text[..length]).into_owned())
    }

    /// Reads a control file of any length, such as a list of processes.
    pub(super) fn read_all(&self, name: &str) -> Result<String> {
        let mut file = std::fs::File::from(self.open_at(name, OFlag::O_RDONLY)?);
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(|error| {
            self.error(
                "read",
                name,
                Errno::from_raw(error.raw_os_error().unwrap_or(0)),
            )
        })?;
        Ok(text)
    }

    /// Writes a control file in one call, as the kernel wants it.
    pub(super) fn write(&self, name: &str, value: &str) -> Result<()> {
        let fd = self.open_at(name, OFlag::O_WRONLY)?;
        write(&fd, value.as_bytes()).map_err(|source| self.error("write", name, source))?;
        Ok(())
    }

    /// Lets a host uid move processes through a control file.
    pub(super) fn give(&self, name: &str, uid: u32) -> Result<()> {
        fchownat(
            &self.fd,
            name,
            Some(Uid::from_raw(uid)),
            None,
            AtFlags::AT_SYMLINK_NOFOLLOW,
        )
        .map_err(|source| self.error("hand over", name, source))
    }

    /// The host uid that a control file belongs to.
    pub(super) fn owner(&self, name: &str) -> Result<u32> {
        fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW)
            .map(|stat| stat.st_uid)
            .map_err(|source| self.error("inspect", name, source))
    }

    /// The names of the groups below this one.
    pub(super) fn children(&self) -> Result<Vec<String>> {
        let open = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut dir = Dir::openat(&self.fd, ".", open, Mode::empty())
            .map_err(|source| file_error("list", self.path.clone(), source))?;
        let mut names = Vec::new();
        for entry in dir.iter() {
            let entry = entry.map_err(|source| file_error("list", self.path.clone(), source))?;
            let name = entry.file_name().to_string_lossy();
            let is_group = entry.file_type() == Some(nix::dir::Type::Directory);
            if is_group && name != "." && name != ".." {
                names.push(name.into_owned());
            }
        }
        Ok(names)
    }

    /// Removes a group below this one. One that is already gone is not an error.
    pub(super) fn remove_child(&self, name: &str) -> Result<()> {
        match unlinkat(&self.fd, name, UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(Errno::EBUSY) => Err(Error::Populated {
                path: self.path.join(name),
            }),
            Err(source) => Err(self.error("remove", name, source)),
        }
    }

    fn error(&self, action: &'static str, name: &str, source: Errno) -> Error {
        file_error(action, self.path.join(name), source)
    }
}

fn file_error(action: &'static str, path: PathBuf, source: Errno) -> Error {
    Error::File {
        action,
        path,
        source,
    }
}

/// Refuses a name that would leave the subtree or be hidden in it.
pub(super) fn check_name(name: &str) -> Result<()> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let acceptable = !name.is_empty()
        && name.len() <= NAME_BYTES
        && name.bytes().all(plain)
        && !name.starts_with('.');
    if acceptable {
        Ok(())
    } else {
        Err(Error::Name { name: name.into() })
    }
}
