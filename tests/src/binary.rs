//! Where the product's binaries are: beside the test binary, in the same target directory.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

/// Takes the binaries from this directory instead: the mutation runner's broken builds.
pub const BINARIES_DIR_VAR: &str = "LODGE_TEST_BINARIES";

/// Directory of the profile, e.g. `target/debug`.
fn profile_dir() -> Result<PathBuf> {
    let exe = std::env::current_exe().context("path of the test binary")?;
    let dir = exe
        .parent()
        .context("the test binary lies in a directory")?;
    let in_deps = dir.file_name().is_some_and(|n| n == "deps");
    Ok(if in_deps {
        dir.parent()
            .context("deps lies in the profile's directory")?
    } else {
        dir
    }
    .to_owned())
}

/// The target directory, e.g. `target`.
pub fn target_dir() -> Result<PathBuf> {
    Ok(profile_dir()?
        .parent()
        .context("the profile lies in the target directory")?
        .to_owned())
}

/// Path of the product's binary `name`; a clear failure if it was not built.
pub fn path(name: &str) -> Result<PathBuf> {
    let dir = match std::env::var_os(BINARIES_DIR_VAR) {
        Some(dir) => PathBuf::from(dir),
        None => profile_dir()?,
    };
    let path = dir.join(name);
    ensure!(
        path.exists(),
        "{} is missing: build it first (make test does)",
        path.display()
    );
    Ok(path)
}
