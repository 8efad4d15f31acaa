//! What can go wrong with a call. A command that fails is no error: see [`crate::Outcome`].

use std::fmt;
use std::io;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// The domain of Lodge's own error details.
const ERROR_DOMAIN: &str = "lodge";
/// The key of the hint in the error details.
const HINT_KEY: &str = "hint";

/// Result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call did not do what it should.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The endpoint is not one that can be connected to.
    #[error("invalid endpoint `{endpoint}`: {problem}")]
    Endpoint {
        /// As given.
        endpoint: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// No daemon answers there.
    #[error("cannot connect to {endpoint}")]
    Connect {
        /// As given.
        endpoint: String,
        /// Why.
        source: tonic::transport::Error,
    },
    /// An argument that cannot be sent.
    #[error("invalid {what}: {problem}")]
    Argument {
        /// Which argument.
        what: &'static str,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The connection failed during the call. Whether the daemon did what was asked is not known; a run that had
    /// started goes on, unless it was to be cancelled then.
    #[error("the connection to the daemon failed")]
    Transport(#[source] Box<Broken>),
    /// The daemon refused the call, or failed.
    #[error(transparent)]
    Api(Box<ApiError>),
    /// The daemon did not answer in time, which is the command's timeout and a margin, or a fixed time for calls
    /// that run nothing.
    #[error("no answer from the daemon within {}", crate::wire::in_words(*after))]
    Deadline {
        /// The time that was waited.
        after: Duration,
    },
    /// The connection broke before the command had all of its standard input. What was not there yet is lost: the
    /// command finds the end of its input too early, and goes on. End it and run it again.
    #[error("the connection broke before the command had all of its standard input")]
    InputCut {
        /// How it broke.
        source: Box<Error>,
    },
    /// A stream ended without its last event, so what became of the run or import is not known.
    #[error("the stream ended early: {missing} is missing")]
    StreamCut {
        /// What should have been there.
        missing: &'static str,
    },
    /// The daemon's answer makes no sense to this version of the client.
    #[error("the daemon's answer is not understood: {what}")]
    Protocol {
        /// What is wrong with it.
        what: &'static str,
    },
    /// The reader that was to be sent (standard input, an archive) failed. What was sent until then has no end mark.
    #[error("cannot read what is to be sent")]
    Upload(#[source] io::Error),
}

impl Error {
    /// The daemon's answer, if it gave one.
    pub fn api(&self) -> Option<&ApiError> {
        match self {
            Self::Api(error) => Some(error),
            _ => None,
        }
    }

    /// Whether the daemon said that the named object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.api().is_some_and(|e| e.code == Code::NotFound)
    }

    /// How to mend it, where that is known.
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Api(error) => Some(error.hint.as_str()).filter(|hint| !hint.is_empty()),
            Self::Connect { source, .. } => Some(connect_hint(source)),
            Self::InputCut { .. } => Some(
                "the command goes on with the input that it got: end it with `lodge kill`, then run it again",
            ),
            Self::Endpoint { .. } => Some("give unix:///path/to/lodged.sock or http://host:port"),
            _ => None,
        }
    }
}

/// The daemon's own words on why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
#[non_exhaustive]
pub struct ApiError {
    /// The gRPC status code.
    pub code: Code,
    /// A stable code in UPPER_SNAKE_CASE; empty if the answer did not come from Lodge's own code.
    pub reason: String,
    /// What happened, and to which object.
    pub message: String,
    /// How to mend it; empty if there is nothing to say.
    pub hint: String,
}

/// How a connection failed.
#[derive(Debug)]
pub struct Broken(Status);

// By hand: what tonic displays of a status is its debug form, with the causes in it.
impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.message())
    }
}

impl std::error::Error for Broken {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        // tonic attaches a source to what it found out by itself, and never to what the other side sent.
        if std::error::Error::source(&status).is_some() {
            return Self::Transport(Box::new(Broken(status)));
        }
        let info = status
            .get_details_error_info()
            .filter(|info| info.domain == ERROR_DOMAIN);
        let (reason, hint) = match info {
            Some(mut info) => (
                info.reason,
                info.metadata.remove(HINT_KEY).unwrap_or_default(),
            ),
            None => Default::default(),
        };
        let message = match status.message() {
            "" => format!("the daemon answered {:?}", status.code()),
            message => message.to_owned(),
        };
        Self::Api(Box::new(ApiError {
            code: status.code(),
            reason,
            message,
            hint,
        }))
    }
}

fn connect_hint(error: &tonic::transport::Error) -> &'static str {
    match io_kind(error) {
        Some(io::ErrorKind::PermissionDenied) => {
            "the socket is for root and the group `lodge`: add your user to it, or use sudo"
        }
        Some(io::ErrorKind::ConnectionRefused) => {
            "a daemon was there and did not come back in time: `systemctl status lodged` says why"
        }
        _ => {
            "is lodged running? start it with `systemctl start lodged`, or set LODGE_ENDPOINT to where it listens"
        }
    }
}

/// What the operating system said, where it was it.
pub(crate) fn io_kind(error: &tonic::transport::Error) -> Option<io::ErrorKind> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return Some(error.kind());
        }
        cause = error.source();
    }
    None
}
