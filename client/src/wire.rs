//! Times, durations and deadlines on their way to and from the wire.

use std::future::Future;
use std::time::{Duration, SystemTime};

use tonic::{Response, Status};

use crate::error::{Error, Result};

/// How long a call that runs nothing may take. Starting a sandbox takes milliseconds; removing one with millions of
/// files is what needs the rest.
pub(crate) const CALL_DEADLINE: Duration = Duration::from_secs(120);

/// Waits for a call's answer, for as long as `limit` says.
pub(crate) async fn answer<T>(
    limit: Option<Duration>,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T> {
    within(limit, async { Ok(call.await?.into_inner()) }).await
}

/// Waits for as long as `limit` says; `None` is without end (a dead connection is noticed by HTTP/2 pings all the same).
pub(crate) async fn within<T>(
    limit: Option<Duration>,
    wanted: impl Future<Output = Result<T>>,
) -> Result<T> {
    match limit {
        None => wanted.await,
        Some(after) => match tokio::time::timeout(after, wanted).await {
            Ok(result) => result,
            Err(_) => Err(Error::Deadline { after }),
        },
    }
}

pub(crate) fn duration(wire: prost_types::Duration) -> Result<Duration> {
    Duration::try_from(wire).map_err(|_| Error::Protocol {
        what: "a duration is out of range",
    })
}

/// `what` names the argument in the error.
pub(crate) fn duration_on_wire(
    what: &'static str,
    duration: Duration,
) -> Result<prost_types::Duration> {
    prost_types::Duration::try_from(duration).map_err(|_| Error::Argument {
        what,
        problem: "it is too long",
    })
}

pub(crate) fn time(wire: prost_types::Timestamp) -> Result<SystemTime> {
    SystemTime::try_from(wire).map_err(|_| Error::Protocol {
        what: "a time is out of range",
    })
}

/// A message that the API's contract says is there.
pub(crate) fn present<T>(field: Option<T>, what: &'static str) -> Result<T> {
    field.ok_or(Error::Protocol { what })
}

/// Seconds, or milliseconds where it is less than one.
pub(crate) fn in_words(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        format!("{} ms", duration.as_millis())
    } else {
        format!("{} s", duration.as_secs())
    }
}
