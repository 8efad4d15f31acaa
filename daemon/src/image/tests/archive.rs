//! Archives, made entry by entry, honest or not: nothing here refuses a hostile field.

use std::io::Write;

use sha2::{Digest as _, Sha256};
use tar::{EntryType, Header};

/// One entry's fields.
#[derive(Clone)]
pub(super) struct Item {
    pub(super) name: Vec<u8>,
    pub(super) kind: u8,
    pub(super) link: Vec<u8>,
    pub(super) content: Vec<u8>,
    pub(super) mode: u32,
    pub(super) owner: (u64, u64),
    pub(super) mtime: u64,
}

impl Item {
    pub(super) fn new(kind: u8, name: impl AsRef<[u8]>) -> Self {
        Self {
            name: name.as_ref().to_vec(),
            kind,
            link: Vec::new(),
            content: Vec::new(),
            mode: 0o755,
            owner: (0, 0),
            mtime: 1_000_000_000,
        }
    }

    pub(super) fn header(&self) -> Header {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::new(self.kind));
        header.set_mode(self.mode);
        header.set_uid(self.owner.0);
        header.set_gid(self.owner.1);
        header.set_mtime(self.mtime);
        header.set_size(self.content.len() as u64);
        let fields = header.as_old_mut();
        fill(&mut fields.name, &self.name);
        fill(&mut fields.linkname, &self.link);
        header.set_cksum();
        header
    }
}

/// A tar stream in the making.
#[derive(Default, Clone)]
pub(super) struct Archive(Vec<u8>);

impl Archive {
    pub(super) fn file(self, name: impl AsRef<[u8]>, content: impl AsRef<[u8]>) -> Self {
        let content = content.as_ref().to_vec();
        self.item(&Item {
            content,
            mode: 0o644,
            ..Item::new(b'0', name)
        })
    }

    pub(super) fn dir(self, name: impl AsRef<[u8]>) -> Self {
        self.item(&Item::new(b'5', name))
    }

    pub(super) fn symlink(self, name: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Self {
        self.item(&Item {
            link: target.as_ref().to_vec(),
            ..Item::new(b'2', name)
        })
    }

    pub(super) fn hard_link(self, name: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Self {
        self.item(&Item {
            link: target.as_ref().to_vec(),
            ..Item::new(b'1', name)
        })
    }

    pub(super) fn item(self, item: &Item) -> Self {
        self.header(&item.header()).content(&item.content)
    }

    pub(super) fn header(mut self, header: &Header) -> Self {
        self.0.extend_from_slice(header.as_bytes());
        self
    }

    /// Content with its padding.
    pub(super) fn content(mut self, content: &[u8]) -> Self {
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    /// A PAX header for the next entry.
    pub(super) fn pax(self, records: &[(&str, &[u8])]) -> Self {
        let content = records
            .iter()
            .flat_map(|(key, value)| pax_record(key, value))
            .collect();
        self.item(&Item {
            content,
            ..Item::new(b'x', "pax")
        })
    }

    /// A GNU long name for the next entry.
    pub(super) fn long_name(self, name: impl AsRef<[u8]>) -> Self {
        let mut content = name.as_ref().to_vec();
        content.push(0);
        self.item(&Item {
            content,
            ..Item::new(b'L', "././@LongLink")
        })
    }

    /// The stream so far, without its end.
    pub(super) fn unfinished(self) -> Vec<u8> {
        self.0
    }

    /// The stream with the zeros that end it.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

fn pax_record(key: &str, value: &[u8]) -> Vec<u8> {
    let body = key.len() + value.len() + 3;
    let mut length = body;
    while body + length.to_string().len() != length {
        length = body + length.to_string().len();
    }
    let mut record = format!("{length} {key}=").into_bytes();
    record.extend_from_slice(value);
    record.push(b'\n');
    record
}

fn fill(field: &mut [u8], value: &[u8]) {
    let count = value.len().min(field.len());
    field[..count].copy_from_slice(&value[..count]);
}

pub(super) fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(plain).expect("memory does not fail");
    encoder.finish().expect("memory does not fail")
}

pub(super) fn zstd(plain: &[u8]) -> Vec<u8> {
    ::zstd::encode_all(plain, 3).expect("memory does not fail")
}

pub(super) fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}
