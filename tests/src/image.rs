//! Images for tests: those that are built from recipes, imported once per build and shared read-only, and small ones made
//! from the host's own bash, for tests that need an image of their own.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use crate::binary;
use crate::daemon::{Daemon, Images, Options};
use crate::hostile::Archive;
use crate::storage::Driver;

/// Name under which the base image is known in every test.
pub const BASE: &str = "base";
/// Devices that programs cannot do without, of the kernel's memory devices: an archive has none.
const DEVICES: &[(&str, u64)] = &[("null", 3), ("urandom", 9)];
/// What the small image holds beside bash: enough to look around.
const TINY_TOOLS: &[&str] = &[
    "bash", "env", "cat", "ls", "id", "true", "sleep", "stat", "sync", "rm",
];

/// An image that tests share: its archive is built once, and imported once per driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shared {
    /// The one that users get too.
    Base,
    /// `tests/images/work`: with a compiler and pip.
    Work,
}

impl Shared {
    /// The recipe's name.
    fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Work => "work",
        }
    }

    /// Where it is imported, where the driver has its files.
    fn home(self) -> &'static str {
        match self {
            Self::Base => "test-images",
            Self::Work => "test-images-work",
        }
    }

    /// The archive.
    fn archive(self) -> Result<PathBuf> {
        let archive = binary::target_dir()?.join(format!("images/{}.tar", self.name()));
        ensure!(
            archive.exists(),
            "{} is missing: run `make image IMAGES={}` first",
            archive.display(),
            self.name()
        );
        Ok(archive)
    }
}

/// The directory with a shared image, known as [`BASE`] there, for all tests of this checkout and driver. Imports it if
/// `make image` made a new one.
pub async fn shared_dir(image: Shared, driver: Driver) -> Result<PathBuf> {
    let archive = image.archive()?;
    // Store and stamp go together: whoever removes the directory removes both.
    let home = driver.home()?.join(image.home());
    let dir = home.join("store");
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    let _lock = lock(&home.join("lock")).await?;
    let stamp = home.join("stamp");
    let wanted = identity(&archive)?;
    if fs::read_to_string(&stamp).ok().as_deref() == Some(&wanted) {
        return Ok(dir);
    }
    let daemon = Daemon::start(Options {
        images: Images::At(dir.clone()),
        driver: Some(driver),
        ..Options::default()
    })
    .await?;
    daemon
        .api()
        .import_file(BASE, &archive)
        .await
        .with_context(|| format!("import the image {}", image.name()))?;
    daemon.stop()?;
    fs::write(&stamp, wanted)?;
    Ok(dir)
}

/// A shared image's files in a directory of the host, for programs that run there.
pub async fn unpacked(image: Shared) -> Result<PathBuf> {
    let archive = image.archive()?;
    let home = binary::target_dir()?.join(format!("{}-unpacked", image.home()));
    let dir = home.join("root");
    fs::create_dir_all(&home).with_context(|| format!("create {}", home.display()))?;
    let _lock = lock(&home.join("lock")).await?;
    let (stamp, wanted) = (home.join("stamp"), identity(&archive)?);
    if fs::read_to_string(&stamp).ok().as_deref() == Some(&wanted) {
        return Ok(dir);
    }
    if dir.exists() {
        fs::remove_dir_all(&dir).with_context(|| format!("remove {}", dir.display()))?;
    }
    fs::create_dir(&dir)?;
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--numeric-owner", "--same-permissions"]);
    tar.arg("--file").arg(&archive).arg("--directory").arg(&dir);
    let status = tar.status().context("run tar")?;
    ensure!(status.success(), "unpack {}: {status}", archive.display());
    fs::create_dir_all(dir.join("dev"))?;
    for (name, minor) in DEVICES {
        let path = dir.join("dev").join(name);
        mknod(&path, SFlag::S_IFCHR, Mode::empty(), makedev(1, *minor))
            .with_context(|| format!("make {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
    }
    fs::write(&stamp, wanted)?;
    Ok(dir)
}

async fn lock(path: &Path) -> Result<Flock<File>> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)?;
    let locked =
        tokio::task::spawn_blocking(move || Flock::lock(file, FlockArg::LockExclusive)).await?;
    locked
        .map_err(|(_, errno)| errno)
        .context("lock the shared images")
}

/// Tells a rebuilt archive from the one that was imported.
fn identity(archive: &Path) -> Result<String> {
    let meta = fs::metadata(archive)?;
    Ok(format!(
        "{} {} {}",
        meta.len(),
        meta.mtime(),
        meta.mtime_nsec()
    ))
}

/// A root file system of a few MiB: the host's bash and some tools with their libraries, and `/etc/passwd`.
pub fn tiny() -> Result<Archive> {
    let mut archive = Archive::new();
    for dir in [
        "bin",
        "etc",
        "home",
        "home/user",
        "tmp",
        "proc",
        "sys",
        "dev",
        "root",
    ] {
        archive.dir(dir)?;
    }
    archive.file(
        "etc/passwd",
        b"root:x:0:0::/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/bash\n",
    )?;
    archive.file("etc/group", b"root:x:0:\nuser:x:1000:\n")?;
    let mut libraries = BTreeSet::new();
    for tool in TINY_TOOLS {
        let path = host_tool(tool)?;
        libraries.extend(libraries_of(&path)?);
        archive.executable(&format!("bin/{tool}"), &fs::read(&path)?)?;
    }
    archive.symlink("bin/sh", "bash")?;
    for library in libraries {
        let inside = library.trim_start_matches('/').to_owned();
        archive.parents(&inside)?;
        archive.executable(&inside, &fs::read(&library)?)?;
    }
    Ok(archive)
}

fn host_tool(name: &str) -> Result<PathBuf> {
    let found = ["/usr/bin", "/bin"]
        .iter()
        .map(|d| Path::new(d).join(name))
        .find(|p| p.exists());
    found.with_context(|| format!("the host has no {name}"))
}

/// Libraries and loader of a program, as the host's own `ldd` lists them.
fn libraries_of(program: &Path) -> Result<Vec<String>> {
    let out = Command::new("ldd")
        .arg(program)
        .output()
        .context("run ldd")?;
    let text = String::from_utf8(out.stdout)?;
    let words = text
        .lines()
        .filter_map(|l| l.split_whitespace().find(|w| w.starts_with('/')));
    Ok(words.map(str::to_owned).collect())
}
