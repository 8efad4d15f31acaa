//! The domain's error: what kind, a stable reason code, what happened to which object, and how to mend it.
//!
//! Adapters have one table each from [`ErrorKind`] to their status codes; nothing here knows a wire type.

use std::error::Error as StdError;
use std::fmt;
use std::io;

/// What sort of failure it is. Adapters map it to a status code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The caller's input cannot be right, whatever the state.
    InvalidArgument,
    /// The named object does not exist.
    NotFound,
    /// It exists already.
    AlreadyExists,
    /// The state does not allow it now.
    FailedPrecondition,
    /// A bound was reached.
    ResourceExhausted,
    /// This host, driver or version cannot do it.
    Unsupported,
    /// An offset or page is outside what exists.
    OutOfRange,
    /// The call was overtaken by another one.
    Aborted,
    /// It may work later.
    Unavailable,
    /// Stored data cannot be read.
    DataLoss,
    /// A fault of Lodge or of the host.
    Internal,
}

/// An error of a call. `Display` is the message for the caller; the chain of causes is for the log alone, since it may
/// name paths of the host.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    reason: &'static str,
    message: String,
    hint: String,
    details: Vec<(&'static str, String)>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// Result of a domain call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// `reason` is a stable code in UPPER_SNAKE_CASE; `message` says what, and which object.
    pub fn new(kind: ErrorKind, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            kind,
            reason,
            message: message.into(),
            hint: String::new(),
            details: Vec::new(),
            source: None,
        }
    }

    /// An argument that cannot be right.
    pub fn invalid(reason: &'static str, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, reason, message)
    }

    /// A fault of Lodge or of the host, with its cause.
    pub fn internal(
        reason: &'static str,
        message: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self::new(ErrorKind::Internal, reason, message).caused_by(source)
    }

    /// The host has no more of something for now.
    pub fn from_shortage(
        message: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self::new(ErrorKind::ResourceExhausted, "HOST_EXHAUSTED", message)
            .hint("processes, memory or open files of the host, or of lodged, are used up")
            .caused_by(source)
    }

    /// Adds how to mend it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = hint.into();
        self
    }

    /// Adds a figure that a program may act on.
    #[must_use]
    pub fn detail(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.details.push((key, value.into()));
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Says in which named step it happened.
    #[must_use]
    pub fn during(mut self, step: &str) -> Self {
        self.message = format!("{step}: {}", self.message);
        self
    }

    /// The same error for a second caller who waited for the same thing. The chain of causes stays with the first, which
    /// is where it is logged.
    #[must_use]
    pub fn replica(&self) -> Self {
        Self {
            kind: self.kind,
            reason: self.reason,
            message: self.message.clone(),
            hint: self.hint.clone(),
            details: self.details.clone(),
            source: None,
        }
    }

    /// What sort of failure it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The stable reason code.
    pub fn reason(&self) -> &'static str {
        self.reason
    }

    /// The message with all causes, for the log. May name paths of the host.
    pub fn chain(&self) -> Chain<'_> {
        chain(self)
    }

    /// Figures that a program may act on, by name.
    pub fn details(&self) -> &[(&'static str, String)] {
        &self.details
    }

    /// How to mend it; empty if there is nothing to say.
    pub fn hint_text(&self) -> &str {
        &self.hint
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source
            .as_deref()
            .map(|e| e as &(dyn StdError + 'static))
    }
}

/// Whether a number of errno(3) says that there is no more of something for now: processes, memory, descriptors.
pub fn is_shortage(errno: i32) -> bool {
    use nix::errno::Errno;
    matches!(
        Errno::from_raw(errno),
        Errno::EAGAIN | Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE
    )
}

/// Whether a disk had no room for more bytes or another name, or a quota on it had none.
pub fn is_disk_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Any error with all its causes, for the log.
pub fn chain<'a>(error: &'a (dyn StdError + 'static)) -> Chain<'a> {
    Chain(error)
}

/// An error with all its causes on one line.
pub struct Chain<'a>(&'a (dyn StdError + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(inner) = cause {
            write!(f, ": {inner}")?;
            cause = inner.source();
        }
        Ok(())
    }
}
