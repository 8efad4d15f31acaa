//! Tar archives written entry by entry, also such as no honest tool writes: names that climb, links out, devices.
//!
//! Headers are filled byte by byte, since the tar crate refuses to write most of these.

use std::io::Write;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use tar::{EntryType, Header};

/// A tar archive in memory.
#[derive(Debug, Default, Clone)]
pub struct Archive {
    bytes: Vec<u8>,
    dirs: std::collections::BTreeSet<String>,
}

/// One entry, as it will be written, whatever it is.
#[derive(Debug, Clone)]
pub struct Entry<'a> {
    /// Name, byte by byte; at most 100 bytes, longer ones need an extension entry.
    pub name: &'a [u8],
    /// Type flag, e.g. `b'0'` for a file.
    pub kind: u8,
    /// Target of a link.
    pub link: &'a [u8],
    /// Permission bits.
    pub mode: u32,
    /// Content; its length is the size in the header.
    pub data: &'a [u8],
    /// Device number, major and minor.
    pub device: (u32, u32),
}

impl Default for Entry<'_> {
    fn default() -> Self {
        Self {
            name: b"",
            kind: b'0',
            link: b"",
            mode: 0o644,
            data: b"",
            device: (0, 0),
        }
    }
}

impl Archive {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an entry as it is.
    pub fn entry(&mut self, entry: &Entry<'_>) -> Result<&mut Self> {
        let mut header = Header::new_gnu();
        header.set_mode(entry.mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_700_000_000);
        header.set_size(entry.data.len() as u64);
        header.set_entry_type(EntryType::new(entry.kind));
        let gnu = header.as_gnu_mut().context("a GNU header")?;
        copy_cut(&mut gnu.name, entry.name);
        copy_cut(&mut gnu.linkname, entry.link);
        if matches!(entry.kind, b'3' | b'4') {
            header.set_device_major(entry.device.0)?;
            header.set_device_minor(entry.device.1)?;
        }
        header.set_cksum();
        self.raw_header(header.as_bytes(), entry.data);
        Ok(self)
    }

    /// Adds a header as it is, and its data padded to blocks.
    pub fn raw_header(&mut self, header: &[u8; 512], data: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(header);
        self.bytes.extend_from_slice(data);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self
    }

    /// Adds a directory, once.
    pub fn dir(&mut self, name: &str) -> Result<&mut Self> {
        if !self.dirs.insert(name.to_owned()) {
            return Ok(self);
        }
        // All entries are root's; a user has its home all the same.
        let mode = if matches!(name, "tmp" | "home/user") {
            0o1777
        } else {
            0o755
        };
        self.entry(&Entry {
            name: name.as_bytes(),
            kind: b'5',
            mode,
            ..Entry::default()
        })
    }

    /// Adds the directories that `path` lies in.
    pub fn parents(&mut self, path: &str) -> Result<&mut Self> {
        for (slash, _) in path.match_indices('/') {
            self.dir(&path[..slash])?;
        }
        Ok(self)
    }

    /// Adds a file.
    pub fn file(&mut self, name: &str, data: &[u8]) -> Result<&mut Self> {
        self.entry(&Entry {
            name: name.as_bytes(),
            data,
            ..Entry::default()
        })
    }

    /// Adds an executable file.
    pub fn executable(&mut self, name: &str, data: &[u8]) -> Result<&mut Self> {
        self.entry(&Entry {
            name: name.as_bytes(),
            mode: 0o755,
            data,
            ..Entry::default()
        })
    }

    /// Adds a symbolic link.
    pub fn symlink(&mut self, name: &str, target: &str) -> Result<&mut Self> {
        let (name, link) = (name.as_bytes(), target.as_bytes());
        self.entry(&Entry {
            name,
            kind: b'2',
            link,
            mode: 0o777,
            ..Entry::default()
        })
    }

    /// Adds a hard link.
    pub fn hardlink(&mut self, name: &str, target: &str) -> Result<&mut Self> {
        let (name, link) = (name.as_bytes(), target.as_bytes());
        self.entry(&Entry {
            name,
            kind: b'1',
            link,
            ..Entry::default()
        })
    }

    /// Adds a PAX extension entry, for the entry that follows.
    pub fn pax(&mut self, records: &[(&str, &[u8])]) -> Result<&mut Self> {
        let mut data = Vec::new();
        for (key, value) in records {
            data.extend(pax_record(key, value));
        }
        self.entry(&Entry {
            name: b"pax",
            kind: b'x',
            data: &data,
            ..Entry::default()
        })
    }

    /// The archive with its end marker.
    pub fn finish(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes.resize(bytes.len() + 1024, 0);
        bytes
    }
}

/// `<length> <key>=<value>\n`, where the length counts itself.
fn pax_record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    let mut record = format!("{length} {key}=").into_bytes();
    record.extend_from_slice(value);
    record.push(b'\n');
    record
}

fn copy_cut(field: &mut [u8], value: &[u8]) {
    let n = value.len().min(field.len());
    field[..n].copy_from_slice(&value[..n]);
}

/// Compresses with gzip, as hard as it can: a bomb wants a high ratio.
pub fn gzip(data: &[u8]) -> Result<Vec<u8>> {
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    writer.write_all(data)?;
    Ok(writer.finish()?)
}

/// A `docker save` archive of these layers, from the lowest, with this image config.
pub fn docker_save(layers: &[Vec<u8>], config: &serde_json::Value) -> Result<Vec<u8>> {
    let mut archive = Archive::new();
    let mut names = Vec::new();
    let mut diff_ids = Vec::new();
    for layer in layers {
        let digest = hex::encode(Sha256::digest(layer));
        let name = format!("{digest}/layer.tar");
        archive.parents(&name)?;
        archive.file(&name, layer)?;
        diff_ids.push(format!("sha256:{digest}"));
        names.push(name);
    }
    let architecture = if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "amd64"
    };
    let config = serde_json::json!({
        "architecture": architecture, "os": "linux", "config": config,
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    });
    let config = serde_json::to_vec(&config)?;
    let config_name = format!("{}.json", hex::encode(Sha256::digest(&config)));
    archive.file(&config_name, &config)?;
    let manifest = serde_json::json!([{
        "Config": config_name, "RepoTags": ["test:latest"], "Layers": names,
    }]);
    archive.file("manifest.json", &serde_json::to_vec(&manifest)?)?;
    Ok(archive.finish())
}
