//! Where a daemon listens, and connecting to it. There is no TLS here yet: `https` is refused, not tried without it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tonic::transport::{Channel, Endpoint, Uri};

use crate::error::{Error, Result, io_kind};
use crate::reconnect::Tries;

/// Where a daemon listens if its configuration does not say otherwise.
pub const DEFAULT_ENDPOINT: &str = "unix:///run/lodge/lodged.sock";
/// The environment variable that names another endpoint.
pub const ENDPOINT_VARIABLE: &str = "LODGE_ENDPOINT";

/// How long connecting may take.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// How long is waited for a daemon that is on its way out or in: 5 s in which it ends its calls, 1 s of its unit, and its
/// start, with many sandboxes to be taken up.
const BACK_WITHIN: Duration = Duration::from_secs(20);
/// While a call is open a ping goes out this often, so that middleboxes see a quiet command as alive. Below the 5 s after
/// which the most impatient proxies cut, with room for a busy machine.
const PING_INTERVAL: Duration = Duration::from_secs(3);
/// A ping that is not answered within this ends the connection.
const PING_DEADLINE: Duration = Duration::from_secs(20);
/// Bytes in flight per stream; enough to keep a local pipe full.
const STREAM_WINDOW: u32 = 1 << 20;
/// Largest HTTP/2 frame that the daemon may send: a chunk of output in one piece, instead of the protocol's 16 KiB.
const FRAME_MAX: u32 = 128 << 10;
/// Bytes in flight per connection: 64 streams whose readers have stopped do not hold up the others.
const CONNECTION_WINDOW: u32 = 64 << 20;

#[derive(Debug, PartialEq, Eq)]
enum Target {
    Unix(PathBuf),
    Http(Uri),
}

/// Connects, or says why not.
pub(crate) async fn connect(endpoint: &str) -> Result<Channel> {
    connect_within(BACK_WITHIN, endpoint).await
}

/// Connects, and waits for as long as `limit` for a daemon that is on its way out or in.
///
/// Such a daemon has its socket's file there and does not listen, so that clients are refused; one that was killed, and
/// that its unit starts again, leaves it like that too. Without the file nobody is on the way, and waiting would only hide
/// that no daemon runs: that fails at once, unless we were refused just before (the file changes hands).
/// Over TCP a refusal says nothing of the kind.
async fn connect_within(limit: Duration, endpoint: &str) -> Result<Channel> {
    let path = match parse(endpoint)? {
        Target::Unix(path) => path,
        Target::Http(uri) => {
            let connected = tuned(Endpoint::from(uri)).connect().await;
            return connected.map_err(|source| failed(endpoint, source));
        }
    };
    let mut tries = Tries::new(limit);
    let mut refused = false;
    loop {
        let error = match connect_unix(path.clone()).await {
            Ok(channel) => return Ok(channel),
            Err(error) => error,
        };
        let kind = io_kind(&error);
        refused |= kind == Some(io::ErrorKind::ConnectionRefused);
        match kind {
            Some(io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) if refused => {
                tries.pause(failed(endpoint, error)).await?;
            }
            _ => return Err(failed(endpoint, error)),
        }
    }
}

fn failed(endpoint: &str, source: tonic::transport::Error) -> Error {
    Error::Connect {
        endpoint: endpoint.to_owned(),
        source,
    }
}

fn parse(endpoint: &str) -> Result<Target> {
    let invalid = |problem| Error::Endpoint {
        endpoint: endpoint.to_owned(),
        problem,
    };
    if let Some(path) = endpoint.strip_prefix("unix://") {
        if !cfg!(unix) {
            return Err(invalid("this platform has no unix sockets"));
        }
        return match path.starts_with('/') {
            true => Ok(Target::Unix(PathBuf::from(path))),
            false => Err(invalid("the socket's path is not absolute")),
        };
    }
    let uri: Uri = endpoint.parse().map_err(|_| invalid("it is not a URI"))?;
    match (uri.scheme_str(), uri.authority()) {
        (Some("http"), Some(_)) if uri.path() == "/" && uri.query().is_none() => {
            Ok(Target::Http(uri))
        }
        (Some("http"), Some(_)) => Err(invalid("it has a path")),
        (Some("https"), _) => Err(invalid("TLS is not supported yet")),
        _ => Err(invalid("its scheme is neither unix nor http")),
    }
}

fn tuned(endpoint: Endpoint) -> Endpoint {
    endpoint
        .connect_timeout(CONNECT_DEADLINE)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_DEADLINE)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME_MAX)
}

#[cfg(unix)]
async fn connect_unix(path: PathBuf) -> Result<Channel, tonic::transport::Error> {
    use hyper_util::rt::TokioIo;
    use tokio::net::UnixStream;

    let connector = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // The URI is only what the `:authority` header says; the connector does not look at it.
    tuned(Endpoint::from_static("http://localhost"))
        .connect_with_connector(connector)
        .await
}

#[cfg(not(unix))]
async fn connect_unix(_: PathBuf) -> Result<Channel, tonic::transport::Error> {
    unreachable!("`parse` refuses unix sockets on this platform")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_unix_paths_and_plain_http() {
        assert_eq!(
            parse(DEFAULT_ENDPOINT).unwrap(),
            Target::Unix("/run/lodge/lodged.sock".into())
        );
        assert_eq!(
            parse("unix:///tmp/a b.sock").unwrap(),
            Target::Unix("/tmp/a b.sock".into())
        );
        assert!(matches!(
            parse("http://127.0.0.1:7000").unwrap(),
            Target::Http(_)
        ));
    }

    /// Tries until the limit where a daemon's socket refuses, and says which socket that is; not at all without one.
    #[tokio::test]
    async fn a_daemon_on_its_way_is_waited_for_and_none_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (left, none) = (dir.path().join("left.sock"), dir.path().join("none.sock"));
        drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
        let short = Duration::from_millis(400);
        for (path, limit, waits) in [(left, short, true), (none, BACK_WITHIN, false)] {
            let begun = tokio::time::Instant::now();
            let endpoint = format!("unix://{}", path.display());
            let error = connect_within(limit, &endpoint).await.unwrap_err();
            let waited = begun.elapsed();
            assert_eq!(waited > limit / 2, waits, "{waited:?}");
            assert!(error.to_string().contains(&endpoint), "{error}");
        }
    }

    #[test]
    fn says_what_is_wrong_with_others() {
        for (endpoint, problem) in [
            ("unix://relative.sock", "not absolute"),
            ("https://host:1", "TLS"),
            ("http://host:1/path", "path"),
            ("ftp://host", "scheme"),
            ("/run/lodge/lodged.sock", "scheme"),
            ("", "URI"),
        ] {
            let text = parse(endpoint).expect_err(endpoint).to_string();
            assert!(text.contains(problem), "{endpoint}: {text}");
        }
    }
}
