//! The base image, unpacked once for the peers, so that every side runs the same files.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::binary;
use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

/// Characters of the archive's digest that name an unpacked copy.
const KEY_LENGTH: usize = 16;

/// An unpacked base image.
pub struct Rootfs {
    archive: PathBuf,
    dir: PathBuf,
    key: String,
}

impl Rootfs {
    /// Unpacks `target/images/base.tar`, unless it was unpacked before.
    pub fn unpack() -> Result<Self> {
        let target = binary::target_dir()?;
        let archive = target.join("images/base.tar");
        let key = digest(&archive)?;
        let all = target.join("bench/rootfs");
        let dir = all.join(&key);
        if !dir.exists() {
            // Of an earlier image, or of an interrupted start.
            if all.exists() {
                fs::remove_dir_all(&all).with_context(|| format!("remove {}", all.display()))?;
            }
            let part = dir.with_extension("part");
            fs::create_dir_all(&part).with_context(|| format!("create {}", part.display()))?;
            let status = Command::new("tar")
                .args([
                    "--extract",
                    "--numeric-owner",
                    "--same-permissions",
                    "--file",
                ])
                .arg(&archive)
                .arg("--directory")
                .arg(&part)
                .status()
                .context("start tar")?;
            ensure!(
                status.success(),
                "unpacking {} failed: {status}",
                archive.display()
            );
            fs::rename(&part, &dir).with_context(|| format!("rename to {}", dir.display()))?;
        }
        Ok(Self { archive, dir, key })
    }

    /// The unpacked tree.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The tar that it came from.
    pub fn archive(&self) -> &Path {
        &self.archive
    }

    /// Names the content.
    pub fn key(&self) -> &str {
        &self.key
    }
}

fn digest(path: &Path) -> Result<String> {
    let mut file = fs::File::open(path)
        .with_context(|| format!("{} is missing: `make bench` builds it", path.display()))?;
    let (mut hash, mut buffer) = (Sha256::new(), vec![0u8; 1 << 20]);
    loop {
        let n = file
            .read(&mut buffer)
            .with_context(|| format!("read {}", path.display()))?;
        if n == 0 {
            break;
        }
        hash.update(&buffer[..n]);
    }
    let mut key = hex::encode(hash.finalize());
    key.truncate(KEY_LENGTH);
    Ok(key)
}
