//! The copy of the product that is broken: the checkout's files, and a target directory of its own.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::mutation::Mutation;

/// The project's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map(Path::to_owned)
        .unwrap_or_default()
}

/// Directories of the checkout that are not part of the product.
const NOT_COPIED: &[&str] = &["target", ".git"];

/// As `make test` builds it: tests of faults need it, and nothing is compiled twice.
pub(crate) const FEATURES: [&str; 2] = ["--features", "lodged/fault-points"];

/// The copy.
#[derive(Debug)]
pub(crate) struct Tree {
    dir: PathBuf,
    target: PathBuf,
}

/// A broken file; mended when this is dropped.
#[derive(Debug)]
pub(crate) struct Broken {
    path: PathBuf,
    whole: String,
}

impl Tree {
    /// Copies what has changed since the last time. Times of files that did not change stay, so that they are not
    /// built again.
    pub(crate) fn copy() -> Result<Self> {
        let home = root().join("target/mutations");
        let (dir, target) = (home.join("tree"), home.join("target"));
        fs::create_dir_all(&dir)?;
        let wanted = files(&root())?;
        for file in &wanted {
            let (from, to) = (root().join(file), dir.join(file));
            let content = fs::read(&from).with_context(|| from.display().to_string())?;
            if fs::read(&to).ok().as_ref() != Some(&content) {
                fs::create_dir_all(to.parent().context("a file lies in a directory")?)?;
                fs::write(&to, content)?;
            }
        }
        for stale in files(&dir)?.difference(&wanted) {
            fs::remove_file(dir.join(stale))?;
        }
        Ok(Self { dir, target })
    }

    /// Builds the product's binaries; false if it does not compile.
    pub(crate) fn build(&self) -> Result<bool> {
        let mut command = Command::new("cargo");
        let status = self
            .enter(&mut command)
            .args([
                "build",
                "--quiet",
                "--offline",
                "-p",
                "lodged",
                "-p",
                "lodge-client",
                "--bins",
            ])
            .args(FEATURES)
            .stderr(Stdio::null())
            .status()
            .context("run cargo build")?;
        Ok(status.success())
    }

    /// Has a command of cargo work on the tree.
    pub(crate) fn enter<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .current_dir(&self.dir)
            .env("CARGO_TARGET_DIR", &self.target)
            // One line is broken after the other: whatever is set outside, the rest need not be compiled again.
            .env("CARGO_INCREMENTAL", "1")
    }

    /// Where its binaries are.
    pub(crate) fn binaries(&self) -> PathBuf {
        self.target.join("debug")
    }

    /// Breaks a file until the guard is dropped.
    pub(crate) fn break_file(&self, mutation: &Mutation) -> Result<Broken> {
        let path = self.dir.join(&mutation.file);
        let whole = fs::read_to_string(&path).with_context(|| mutation.file.clone())?;
        let count = whole.matches(&mutation.find).count();
        ensure!(
            count == 1,
            "{} has the text to break {count} times, not once",
            mutation.file
        );
        fs::write(&path, whole.replacen(&mutation.find, &mutation.replace, 1))?;
        Ok(Broken { path, whole })
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        // If this fails the next copy mends it: it compares content.
        let _ = fs::write(&self.path, &self.whole);
    }
}

/// Files below `top`, by their paths from it.
pub(crate) fn files(top: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    let mut todo = vec![top.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
            let entry = entry?;
            let kind = entry.file_type()?;
            let skipped = dir == top && NOT_COPIED.iter().any(|n| entry.file_name() == *n);
            if kind.is_dir() && !skipped {
                todo.push(entry.path());
            } else if kind.is_file() {
                found.insert(entry.path().strip_prefix(top)?.to_owned());
            }
        }
    }
    Ok(found)
}
