//! Errors of the domain as gRPC statuses: one table, and the one place where they are logged.

use std::collections::HashMap;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::error::{Error, ErrorKind};

/// `ErrorInfo.domain` of every error.
const DOMAIN: &str = "lodge";
/// Key of the text that says how to mend it, in `ErrorInfo.metadata`.
const HINT: &str = "hint";

/// The status of an error. What is not the caller's fault is logged here, with all its causes; the caller gets the message
/// alone.
pub fn status(error: &Error) -> Status {
    let code = code(error.kind());
    match blame(error.kind()) {
        Blame::Ours => {
            tracing::error!(reason = error.reason(), error = %error.chain(), "call failed");
        }
        Blame::Theirs => {
            tracing::debug!(reason = error.reason(), error = %error.chain(), "call refused");
        }
    }
    let mut metadata = HashMap::new();
    if !error.hint_text().is_empty() {
        metadata.insert(HINT.to_owned(), error.hint_text().to_owned());
    }
    let figures = error.details().iter();
    metadata.extend(figures.map(|(key, value)| ((*key).to_owned(), value.clone())));
    let details = ErrorDetails::with_error_info(error.reason(), DOMAIN, metadata);
    Status::with_error_details(code, error.to_string(), details)
}

fn code(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::InvalidArgument => Code::InvalidArgument,
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::AlreadyExists => Code::AlreadyExists,
        ErrorKind::FailedPrecondition => Code::FailedPrecondition,
        ErrorKind::ResourceExhausted => Code::ResourceExhausted,
        ErrorKind::Unsupported => Code::Unimplemented,
        ErrorKind::OutOfRange => Code::OutOfRange,
        ErrorKind::Aborted => Code::Aborted,
        ErrorKind::Unavailable => Code::Unavailable,
        ErrorKind::DataLoss => Code::DataLoss,
        ErrorKind::Internal => Code::Internal,
    }
}

/// Whose fault an error is.
#[derive(Debug, PartialEq, Eq)]
enum Blame {
    /// The caller's, or the state's that the caller asked for.
    Theirs,
    /// Lodge's or the host's: an operator must be able to find the cause.
    Ours,
}

fn blame(kind: ErrorKind) -> Blame {
    match kind {
        // Also what may work later: that PID 1 did not answer has a cause.
        ErrorKind::Internal | ErrorKind::DataLoss | ErrorKind::Unavailable => Blame::Ours,
        ErrorKind::InvalidArgument
        | ErrorKind::NotFound
        | ErrorKind::AlreadyExists
        | ErrorKind::FailedPrecondition
        | ErrorKind::ResourceExhausted
        | ErrorKind::Unsupported
        | ErrorKind::OutOfRange
        | ErrorKind::Aborted => Blame::Theirs,
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        status(&error)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _};

    use super::*;

    #[test]
    fn a_status_carries_reason_domain_and_hint_and_no_cause() {
        let cause = std::io::Error::other("/var/lib/lodge/secret/path");
        let error = Error::internal("BROKEN", "it broke", cause).hint("mend it");
        let status = Status::from(error);
        assert_eq!(
            (status.code(), status.message()),
            (Code::Internal, "it broke")
        );
        let info = status.get_details_error_info().expect("error info");
        assert_eq!(
            (info.reason.as_str(), info.domain.as_str()),
            ("BROKEN", "lodge")
        );
        assert_eq!(
            info.metadata.get("hint").map(String::as_str),
            Some("mend it")
        );
        assert!(!format!("{status:?}").contains("secret/path"));
    }

    /// What the log of a daemon with the usual level has of an error.
    fn logged(error: &Error) -> String {
        let mut file = tempfile::tempfile().expect("a file");
        let writer = std::sync::Mutex::new(file.try_clone().expect("duplicated"));
        let log = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::INFO)
            .with_writer(writer)
            .finish();
        tracing::subscriber::with_default(log, || status(error));
        let mut text = String::new();
        file.rewind().expect("a plain file");
        file.read_to_string(&mut text).expect("text");
        text
    }

    #[test]
    fn what_may_work_later_is_logged_with_its_cause() {
        let cause = std::io::Error::other("broken pipe");
        let error = Error::new(ErrorKind::Unavailable, "HOLDER_UNREACHABLE", "no answer");
        let text = logged(&error.caused_by(cause));
        assert!(text.contains("no answer: broken pipe"), "{text}");
        assert_eq!(logged(&Error::invalid("INVALID_NAME", "no name")), "");
    }
}
