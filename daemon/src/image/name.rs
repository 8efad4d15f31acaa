//! Names and digests of images, validated once, at the edge.
//!
//! A name is the caller's and never becomes part of a path. The digits of a digest do: they are 64 of `[0-9a-f]`.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::ImageError;

/// Longest image name, in bytes.
const NAME_MAX: usize = 128;
/// How a digest begins. A name may not, so that a reference is never both.
const DIGEST_PREFIX: &str = "sha256:";

/// An image's name, such as `base` or `team/agent:2`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ImageName(String);

impl ImageName {
    /// Validates a name: `[a-z0-9][a-z0-9._/:-]{0,127}`, and not the beginning of a digest.
    pub fn parse(text: &str) -> Result<Self, ImageError> {
        let mut bytes = text.bytes();
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let head = bytes.next().is_some_and(plain);
        let tail = bytes.all(|b| plain(b) || b"._/:-".contains(&b));
        if head && tail && text.len() <= NAME_MAX && !text.starts_with(DIGEST_PREFIX) {
            Ok(Self(text.to_owned()))
        } else {
            Err(ImageError::Name {
                text: text.chars().take(40).collect(),
            })
        }
    }

    /// The name's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for ImageName {
    type Error = ImageError;
    fn try_from(text: String) -> Result<Self, ImageError> {
        Self::parse(&text)
    }
}

impl From<ImageName> for String {
    fn from(name: ImageName) -> String {
        name.0
    }
}

/// A SHA-256 digest; as text `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

impl Digest {
    /// Validates a digest's text.
    pub fn parse(text: &str) -> Result<Self, ImageError> {
        text.strip_prefix(DIGEST_PREFIX)
            .and_then(Self::from_hex)
            .ok_or_else(|| ImageError::Name {
                text: text.chars().take(80).collect(),
            })
    }

    /// The digest with these 64 lower-case digits.
    pub(super) fn from_hex(digits: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        let lower = !digits.bytes().any(|b| b.is_ascii_uppercase());
        (lower && hex::decode_to_slice(digits, &mut bytes).is_ok()).then_some(Self(bytes))
    }

    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    pub(super) fn from_hasher(hasher: Sha256) -> Self {
        Self(hasher.finalize().into())
    }

    /// The 64 digits alone, for a path.
    pub fn hex(&self) -> String {
        hex::encode(self.0)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{DIGEST_PREFIX}{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TryFrom<String> for Digest {
    type Error = ImageError;
    fn try_from(text: String) -> Result<Self, ImageError> {
        Self::parse(&text)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.to_string()
    }
}

/// An image as a caller names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageRef {
    /// By one of its names.
    Name(ImageName),
    /// By its digest.
    Digest(Digest),
}

impl ImageRef {
    /// Validates a name or a digest.
    pub fn parse(text: &str) -> Result<Self, ImageError> {
        if text.starts_with(DIGEST_PREFIX) {
            Digest::parse(text).map(Self::Digest)
        } else {
            ImageName::parse(text).map(Self::Name)
        }
    }
}

impl fmt::Display for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Digest(digest) => digest.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_are_refused() {
        let long = "a".repeat(129);
        for name in [
            "", "../x", "/etc", "-rf", "A", "a b", "a\n", "a\0", "ü", "sha256:1", &long,
        ] {
            assert!(ImageName::parse(name).is_err(), "{name:?} was accepted");
        }
        for name in [
            "base",
            "team/agent:2.0-rc_1".replace('_', ".").as_str(),
            &"a".repeat(128),
        ] {
            assert!(ImageName::parse(name).is_ok(), "{name:?} was refused");
        }
    }

    #[test]
    fn a_digest_keeps_its_text() {
        let text = format!("sha256:{}", "0f".repeat(32));
        assert_eq!(Digest::parse(&text).expect("valid").to_string(), text);
        assert!(Digest::parse(&text.to_uppercase()).is_err());
        assert!(Digest::parse(&format!("sha256:{}", "0F".repeat(32))).is_err());
        assert!(Digest::parse("sha256:../../etc").is_err());
    }
}
