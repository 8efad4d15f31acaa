//! Images for tests: the base image, imported once per build of it and shared read-only, and small ones made from the
//! host's own bash, for tests that need an image of their own.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::fcntl::{Flock, FlockArg};

use crate::binary;
use crate::daemon::{Daemon, Images, Options};
use crate::hostile::Archive;
use crate::storage::Driver;

/// Name under which the base image is known in every test.
pub const BASE: &str = "base";
/// What the small image holds beside bash: enough to look around.
const TINY_TOOLS: &[&str] = &[
    "bash", "env", "cat", "ls", "id", "true", "sleep", "stat", "sync", "rm",
];

/// The directory with the base image, shared by all tests of this checkout and driver. Imports it if `make image` made a new
/// one.
pub async fn shared_dir(driver: Driver) -> Result<PathBuf> {
    let target = binary::target_dir()?;
    let archive = target.join("images/base.tar");
    ensure!(
        archive.exists(),
        "{} is missing: run `make image` first",
        archive.display()
    );
    // Store and stamp go together: whoever removes the directory removes both.
    let home = driver.home()?.join("test-images");
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
        .context("import the base image")?;
    daemon.stop()?;
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
