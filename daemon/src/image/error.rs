//! What can go wrong with images, and what the caller is told of it.
//!
//! Nothing here names a path of the host: objects are entries of the caller's archive, or parts of our own store.

use std::io;

use super::{Digest, ImageRef};
use crate::error::{Error, ErrorKind, is_disk_full};
use crate::fault::Injected;

/// Longest entry name in a message, in characters.
const NAME_SHOWN: usize = 120;

/// A failure of an image call.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Neither a name nor a digest.
    #[error("not an image name: {text:?}")]
    Name {
        /// Its first characters.
        text: String,
    },
    /// No such image.
    #[error("no image {image}")]
    NotFound {
        /// What was asked for.
        image: ImageRef,
    },
    /// Sandboxes use it.
    #[error("image {image} is in use by {sandboxes} sandbox(es)")]
    InUse {
        /// What was to be removed.
        image: ImageRef,
        /// How many use it.
        sandboxes: u32,
    },
    /// Sandboxes may use any image, since what they are made from cannot be read.
    #[error("{sandboxes} damaged sandbox(es) may be made from any image")]
    UsesUnknown {
        /// How many.
        sandboxes: u32,
    },
    /// The archive ends too early.
    #[error("the archive is truncated: it ends in {inside}")]
    Truncated {
        /// Where it ends.
        inside: &'static str,
    },
    /// A block that is no valid tar header.
    #[error("not a valid tar header at byte {offset}: {problem}")]
    Header {
        /// Where, in the uncompressed stream.
        offset: u64,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// An entry that is refused, and with it the archive.
    #[error("entry {entry:?} is refused: {problem}")]
    Entry {
        /// Its name, cut and with what cannot be shown replaced.
        entry: String,
        /// Why.
        problem: &'static str,
    },
    /// A compression that is not built in.
    #[error("{format} is not supported")]
    Format {
        /// Its name.
        format: &'static str,
    },
    /// The compressed stream is damaged.
    #[error("the archive cannot be decompressed")]
    Decompress(#[source] io::Error),
    /// A bound was reached.
    #[error("the archive has more than {limit} {what}")]
    Limit {
        /// Of what.
        what: &'static str,
        /// How many are allowed.
        limit: u64,
    },
    /// It expands too much to be an honest archive.
    #[error("the archive expands more than {limit} times: taken for a decompression bomb")]
    Ratio {
        /// How many times it may expand.
        limit: u64,
    },
    /// The disk would become too full.
    #[error("the image directory's disk would be left with less than {reserve} free bytes")]
    DiskReserve {
        /// What must stay free.
        reserve: u64,
    },
    /// A part of a `docker save` or OCI archive is missing or not what its digest says.
    #[error("{member:?} {problem}")]
    Member {
        /// The part's name in the archive.
        member: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// A JSON part of the archive cannot be read.
    #[error("{member:?} is not a valid {what}")]
    Json {
        /// The part's name in the archive.
        member: String,
        /// What it should be.
        what: &'static str,
        /// The parser's words.
        #[source]
        source: serde_json::Error,
    },
    /// An image for another kind of machine.
    #[error("the image is for {platform}, this host is linux/{host}")]
    Platform {
        /// What it is for.
        platform: String,
        /// This host's architecture, in the words of image configs.
        host: &'static str,
    },
    /// A config that cannot be used.
    #[error("the image's config is refused: {problem}")]
    Config {
        /// Why.
        problem: &'static str,
    },
    /// The caller went away or gave up.
    #[error("the import was cancelled")]
    Cancelled,
    /// The store's own index cannot be read. It is left as it is.
    #[error("the image index is damaged")]
    Index(#[source] serde_json::Error),
    /// There are layers, and no index that says whose they are.
    #[error("the image index is gone, and images' layers are there")]
    IndexLost,
    /// The index was written by another version of Lodge. It is left as it is.
    #[error("the image index has version {version}, which this daemon does not know")]
    IndexVersion {
        /// What it says.
        version: u32,
    },
    /// A layer of the store is gone.
    #[error("layer {layer} of image {image} is missing from the store")]
    LayerMissing {
        /// The image.
        image: Digest,
        /// The layer.
        layer: Digest,
    },
    /// Layers are to be subvolumes where there are none.
    #[error("the images directory is not on btrfs")]
    NotBtrfs,
    /// The store was made with layers of another form. It is left as it is.
    #[error("the images directory has layers as {found}, and they are to be {wanted}")]
    OtherForm {
        /// What is there.
        found: &'static str,
        /// What was asked for.
        wanted: &'static str,
    },
    /// A call to the kernel failed.
    #[error("cannot {doing} {object:?}")]
    Io {
        /// What we were doing.
        doing: &'static str,
        /// To what: an entry's name, or a part of the store.
        object: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

impl ImageError {
    /// A refused entry.
    pub(super) fn entry(name: &[u8], problem: &'static str) -> Self {
        Self::Entry {
            entry: shown(name),
            problem,
        }
    }

    /// A failed call on an entry or on a part of the store.
    pub(super) fn io(
        doing: &'static str,
        object: impl AsRef<[u8]>,
        source: impl Into<io::Error>,
    ) -> Self {
        Self::Io {
            doing,
            object: shown(object.as_ref()),
            source: source.into(),
        }
    }

    /// An error out of a chain of readers: our own guards come back as they were.
    pub(super) fn from_read(error: io::Error) -> Self {
        match error.downcast::<Self>() {
            Ok(own) => own,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Self::Truncated {
                inside: "its compressed stream",
            },
            Err(error) => Self::Decompress(error),
        }
    }

    fn kind_and_reason(&self) -> (ErrorKind, &'static str) {
        use ErrorKind::{
            DataLoss, FailedPrecondition, Internal, InvalidArgument, NotFound, ResourceExhausted,
            Unsupported,
        };
        match self {
            Self::Name { .. } => (InvalidArgument, "INVALID_IMAGE_NAME"),
            Self::NotFound { .. } => (NotFound, "IMAGE_NOT_FOUND"),
            Self::InUse { .. } => (FailedPrecondition, "IMAGE_IN_USE"),
            Self::UsesUnknown { .. } => (FailedPrecondition, "IMAGE_USES_UNKNOWN"),
            Self::Truncated { .. } => (InvalidArgument, "ARCHIVE_TRUNCATED"),
            Self::Header { .. } | Self::Decompress(_) => (InvalidArgument, "ARCHIVE_DAMAGED"),
            Self::Entry { .. } => (InvalidArgument, "ARCHIVE_ENTRY_REFUSED"),
            Self::Format { .. } => (Unsupported, "ARCHIVE_FORMAT_UNSUPPORTED"),
            Self::Limit { .. } => (ResourceExhausted, "ARCHIVE_TOO_LARGE"),
            Self::Ratio { .. } => (ResourceExhausted, "ARCHIVE_BOMB"),
            Self::DiskReserve { .. } => (ResourceExhausted, "DISK_RESERVE"),
            Self::Member { .. } | Self::Json { .. } => (InvalidArgument, "ARCHIVE_DAMAGED"),
            Self::Platform { .. } => (Unsupported, "IMAGE_PLATFORM"),
            Self::Config { .. } => (InvalidArgument, "IMAGE_CONFIG_REFUSED"),
            Self::Cancelled => (ErrorKind::Aborted, "IMPORT_CANCELLED"),
            Self::Index(_)
            | Self::IndexLost
            | Self::IndexVersion { .. }
            | Self::LayerMissing { .. } => (DataLoss, "IMAGE_STORE_DAMAGED"),
            Self::NotBtrfs | Self::OtherForm { .. } => (FailedPrecondition, "IMAGE_STORE_UNFIT"),
            Self::Io { source, .. } if is_disk_full(source) => (ResourceExhausted, "DISK_FULL"),
            Self::Io { .. } => (Internal, "IMAGE_IO"),
        }
    }

    fn hint(&self) -> &'static str {
        match self {
            Self::Name { .. } => {
                "a name is 1 to 128 of [a-z0-9._/:-] and begins with a letter or a digit; \
                 a digest is sha256: and 64 hexadecimal digits"
            }
            Self::NotFound { .. } => "`lodge image ls` shows the images of this host",
            Self::InUse { .. } => "delete those sandboxes first",
            Self::UsesUnknown { .. } => "`lodge ls` shows damaged sandboxes; mend or delete them",
            Self::Truncated { .. } | Self::Header { .. } | Self::Decompress(_) => {
                "make or copy the archive again"
            }
            Self::Entry { .. } => "make the archive without this entry; nothing was imported",
            Self::Format { .. } => "give a tar file that is plain or compressed with gzip or zstd",
            Self::DiskReserve { .. } => "free some space, or remove images that are not used",
            Self::LayerMissing { .. } => "import the image again",
            Self::IndexLost => {
                "put index.json of images_dir back from a copy; if no sandbox is to be kept, empty images_dir"
            }
            Self::NotBtrfs => "set images_dir to a directory on btrfs, or use the overlay driver",
            Self::OtherForm { .. } => {
                "give this storage driver an images_dir of its own, and import the images there"
            }
            _ => "",
        }
    }
}

impl From<ImageError> for Error {
    fn from(error: ImageError) -> Self {
        let (kind, reason) = error.kind_and_reason();
        Error::new(kind, reason, error.to_string())
            .hint(error.hint())
            .caused_by(error)
    }
}

/// A hostile name, fit for a message.
pub(super) fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name)
        .chars()
        .take(NAME_SHOWN)
        .collect()
}

impl From<Injected> for ImageError {
    fn from(injected: Injected) -> Self {
        Self::io("pass", "a fault point", injected)
    }
}
