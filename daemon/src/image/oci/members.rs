//! The archive as a list of members with their places in the file.
//!
//! A `docker save` or OCI archive is told from a root file system by its names alone: all of them are of a few shapes
//! that no root file system has. The scan of a root file system ends at its first file; that of an archive of layers passes
//! over all of it, so that whoever scans watches the stream.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::fs::File;
use std::io::{self, Read};

use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use crate::image::ImageError;
use crate::image::error::shown;
use crate::image::name::Digest;
use crate::image::span::Span;
use crate::image::tar::{Entry, Kind, TarReader};

/// Most members: 127 layers have three files each in the oldest form.
const MEMBERS_MAX: usize = 4096;
/// Largest JSON member, in bytes: what registries allow for a manifest.
const JSON_MAX: u64 = 4 * 1024 * 1024;
/// Bytes read at once for a digest.
const BUFFER: usize = 256 * 1024;

/// The place of one member's content in the archive file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::image) struct Member {
    /// Its name, for messages.
    pub(in crate::image) name: String,
    offset: u64,
    size: u64,
}

#[derive(Debug)]
enum Place {
    Content(Member),
    /// Older `docker save`s link to a layer that they hold already.
    Link(String),
}

/// All members of an archive of layers.
#[derive(Debug, Default)]
pub(in crate::image) struct Members(HashMap<String, Place>);

impl Members {
    /// Scans a plain tar stream; `None` if it is a root file system.
    pub(in crate::image) fn scan(stream: impl Read) -> Result<Option<Self>, ImageError> {
        let mut reader = TarReader::new(stream);
        let mut members = Self::default();
        while let Some(entry) = reader.next()? {
            if entry.path.is_root() {
                continue;
            }
            let Some(name) = member_name(&entry) else {
                return Ok(None);
            };
            members.add(name, &entry, reader.offset())?;
        }
        let complete = members.has(super::docker::MANIFEST) || members.has(super::layout::INDEX);
        Ok(complete.then_some(members))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The member of this name; a link is followed once, within the archive.
    pub(super) fn get(&self, name: &str) -> Result<Member, ImageError> {
        let place = match self.0.get(name) {
            Some(Place::Link(target)) => self.0.get(target),
            place => place,
        };
        match place {
            Some(Place::Content(member)) => Ok(member.clone()),
            _ => Err(Member::problem(name, "is missing from the archive")),
        }
    }

    /// A blob of an OCI layout.
    pub(super) fn blob(&self, digest: Digest) -> Result<Member, ImageError> {
        self.get(&format!("blobs/sha256/{}", digest.hex()))
    }

    fn add(&mut self, name: &str, entry: &Entry, offset: u64) -> Result<(), ImageError> {
        let place = match &entry.kind {
            Kind::Directory => return Ok(()),
            Kind::File => Place::Content(Member {
                name: name.to_owned(),
                offset,
                size: entry.size,
            }),
            Kind::Symlink(target) => Place::Link(link_target(name, target)),
            Kind::HardLink(target) => {
                Place::Link(String::from_utf8_lossy(target.as_bytes()).into_owned())
            }
            Kind::Sparse(_) | Kind::LeftOut(_) => {
                return Err(Member::problem(name, "is neither a file nor a directory"));
            }
        };
        if self.0.len() == MEMBERS_MAX {
            return Err(ImageError::Limit {
                what: "members",
                limit: MEMBERS_MAX as u64,
            });
        }
        // Two contents under one name: which one was checked, and which one is used?
        match self.0.entry(name.to_owned()) {
            Slot::Vacant(slot) => {
                slot.insert(place);
                Ok(())
            }
            Slot::Occupied(_) => Err(Member::problem(name, "is in the archive twice")),
        }
    }
}

impl Member {
    /// The member's bytes.
    pub(in crate::image) fn reader<'a>(&self, archive: &'a File) -> Span<'a> {
        Span::new(archive, self.offset, self.size)
    }

    /// Checks the content, which `reader` gives, against the digest in the name, where the name is one.
    pub(in crate::image) fn verify(&self, mut reader: impl Read) -> Result<(), ImageError> {
        let stem = self
            .name
            .strip_prefix("blobs/sha256/")
            .or(self.name.strip_suffix(".json"));
        let Some(wanted) = stem.and_then(Digest::from_hex) else {
            return Ok(());
        };
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; BUFFER];
        loop {
            let count = reader.read(&mut buffer).map_err(|e| self.unreadable(e))?;
            if count == 0 {
                break;
            }
            hasher.update(&buffer[..count]);
        }
        if Digest::from_hasher(hasher) == wanted {
            Ok(())
        } else {
            Err(Self::problem(
                &self.name,
                "does not have the content that its digest says",
            ))
        }
    }

    /// Parses the content, after checking its digest.
    pub(super) fn json<T: DeserializeOwned>(
        &self,
        archive: &File,
        what: &'static str,
    ) -> Result<T, ImageError> {
        if self.size > JSON_MAX {
            return Err(Self::problem(&self.name, "is larger than 4 MiB"));
        }
        self.verify(self.reader(archive))?;
        let mut text = Vec::new();
        self.reader(archive)
            .read_to_end(&mut text)
            .map_err(|e| ImageError::io("read", self.name.as_bytes(), e))?;
        serde_json::from_slice(&text).map_err(|source| ImageError::Json {
            member: self.name.clone(),
            what,
            source,
        })
    }

    /// The observer's stop comes through as it is.
    fn unreadable(&self, error: io::Error) -> ImageError {
        match error.downcast::<ImageError>() {
            Ok(own) => own,
            Err(error) => ImageError::io("read", self.name.as_bytes(), error),
        }
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn problem(name: &str, problem: &'static str) -> ImageError {
        ImageError::Member {
            member: shown(name.as_bytes()),
            problem,
        }
    }
}

/// The entry's name if it has a shape that archives of layers have.
fn member_name(entry: &Entry) -> Option<&str> {
    let name = std::str::from_utf8(entry.path.as_bytes()).ok()?;
    if matches!(entry.kind, Kind::Directory) {
        return Some(name);
    }
    let known = match name.split_once('/') {
        None => is_member_of_the_top(name),
        Some(("blobs", blob)) => blob
            .strip_prefix("sha256/")
            .is_some_and(|hex| Digest::from_hex(hex).is_some()),
        // One directory a layer, as `docker save` had it before version 25.
        Some((_, rest)) => matches!(rest, "VERSION" | "json" | "layer.tar"),
    };
    known.then_some(name)
}

/// Whether a file beside the manifest has a name that some tool gives there: Docker and Podman name layers and configs by digest,
/// others as they please.
fn is_member_of_the_top(name: &str) -> bool {
    let suffixes = [".json", ".tar", ".tar.gz", ".tgz"];
    matches!(name, "oci-layout" | "repositories")
        || name.starts_with("sha256:")
        || suffixes.iter().any(|suffix| name.ends_with(suffix))
}

/// The target of `../<id>/layer.tar` beside `name`; anything else leads nowhere and is found missing.
fn link_target(name: &str, target: &[u8]) -> String {
    let target = String::from_utf8_lossy(target);
    match (name.split_once('/'), target.strip_prefix("../")) {
        (Some((_, rest)), Some(up)) if !rest.contains('/') => up.to_owned(),
        _ => target.into_owned(),
    }
}
