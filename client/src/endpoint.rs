//! Where a daemon listens, and connecting to it. There is no TLS here yet: `https` is refused, not tried without it.

use std::path::PathBuf;
use std::time::Duration;

use tonic::transport::{Channel, Endpoint, Uri};

use crate::error::{Error, Result};

/// Where a daemon listens if its configuration does not say otherwise.
pub const DEFAULT_ENDPOINT: &str = "unix:///run/lodge/lodged.sock";
/// The environment variable that names another endpoint.
pub const ENDPOINT_VARIABLE: &str = "LODGE_ENDPOINT";

/// How long connecting may take.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
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
    let connected = match parse(endpoint)? {
        Target::Unix(path) => connect_unix(path).await,
        Target::Http(uri) => tuned(Endpoint::from(uri)).connect().await,
    };
    connected.map_err(|source| Error::Connect {
        endpoint: endpoint.to_owned(),
        source,
    })
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
