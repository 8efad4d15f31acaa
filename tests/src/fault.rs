//! The places at which the daemon can be told to fail, die or wait (`daemon/src/fault`), as it lists them itself.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::binary;

/// Names of all points of the daemon under test.
pub fn points() -> Result<Vec<String>> {
    let output = Command::new(binary::path("lodged")?)
        .arg("fault-points")
        .output()?;
    ensure!(
        output.status.success(),
        "lodged has no fault points: {}\nhint: cargo build --workspace --bins --features lodged/fault-points",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// Those that begin with one of these words; there are some.
pub fn points_of(prefixes: &[&str]) -> Result<Vec<String>> {
    let mut found = points()?;
    found.retain(|point| prefixes.iter().any(|prefix| point.starts_with(prefix)));
    ensure!(!found.is_empty(), "no point begins with {prefixes:?}");
    Ok(found)
}
