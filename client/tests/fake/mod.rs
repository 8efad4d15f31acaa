// A stand-in for the daemon: speaks its API over a unix socket and runs commands on the host with `sh`, without any
// isolation. It is for tests of the client alone; what the real daemon does is tested in the workspace's `tests/`.
// Scripts that start with `fake:` misbehave in ways that a sound daemon does not.
//
// Included by the crate's example as well, hence no inner attributes or doc comments.

mod exec; // runs
mod images; // images
mod node; // the host
mod sandboxes; // sandboxes

use std::pin::Pin;
use std::sync::{Arc, Mutex};

use lodge_proto::v1 as pb;
use pb::exec_service_server::ExecServiceServer;
use pb::image_service_server::ImageServiceServer;
use pb::node_service_server::NodeServiceServer;
use pb::sandbox_service_server::SandboxServiceServer;
use tokio::net::UnixListener;
use tokio::sync::Notify;
use tokio_stream::Stream;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Response, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

/// The id of every sandbox and run of the fake.
pub(crate) const ID: &str = "00000000000000000000";
/// The id of the fake's second sandbox; it is gone after the first watch.
pub(crate) const SECOND_ID: &str = "00000000000000000001";
/// The id of a run whose stream is cut after `part`; it can be attached to.
pub(crate) const CUT_ONCE: &str = "00000000000000000001";
/// Bytes that a message may have; the same as the real server's.
const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// A running fake. Ends with the runtime.
pub(crate) struct Daemon {
    dir: tempfile::TempDir,
    asked: Arc<Mutex<Asked>>,
}

/// The last request of each kind.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asked {
    /// Those of the runs, in their order.
    pub(crate) request_ids: Vec<String>,
    pub(crate) acquire: pb::AcquireRequest,
    pub(crate) list: pb::ListSandboxesRequest,
    pub(crate) update: pb::UpdateSandboxRequest,
    pub(crate) run: pb::RunSpec,
    /// In their order.
    pub(crate) watches: Vec<pb::WatchSandboxesRequest>,
}

impl Daemon {
    pub(crate) async fn start() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let listener = UnixListener::bind(dir.path().join("sock")).expect("a socket in it");
        let asked = Arc::new(Mutex::new(Asked::default()));
        let fake = Fake {
            kill: Arc::new(Notify::new()),
            asked: asked.clone(),
        };
        let exec =
            ExecServiceServer::new(fake.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let server = tonic::transport::Server::builder()
            .add_service(exec)
            .add_service(SandboxServiceServer::new(fake.clone()))
            .add_service(NodeServiceServer::new(fake.clone()))
            .add_service(ImageServiceServer::new(fake));
        tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
        Self { dir, asked }
    }

    /// What it was asked.
    #[allow(dead_code, reason = "not every test that includes this asks")]
    pub(crate) fn asked(&self) -> Asked {
        self.asked.lock().expect("no panic").clone()
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("unix://{}", self.dir.path().join("sock").display())
    }
}

#[derive(Clone)]
struct Fake {
    /// Ends the streaming runs that go on now.
    kill: Arc<Notify>,
    asked: Arc<Mutex<Asked>>,
}

impl Fake {
    fn note(&self, note: impl FnOnce(&mut Asked)) {
        note(&mut self.asked.lock().expect("no panic"));
    }

    /// Whether this request id was not seen before; without one every call is a first one.
    fn is_first(&self, request_id: &str) -> bool {
        let mut seen = false;
        self.note(|asked| {
            seen = !request_id.is_empty() && asked.request_ids.iter().any(|id| id == request_id);
            asked.request_ids.push(request_id.to_owned());
        });
        !seen
    }
}

type Events<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Answer<T> = Result<Response<T>, Status>;

fn sandbox() -> pb::Sandbox {
    let state = pb::SandboxState::Running.into();
    pb::Sandbox {
        id: ID.into(),
        name: "fake".into(),
        state,
        ..pb::Sandbox::default()
    }
}

fn refusal() -> Status {
    let hint = [("hint".to_owned(), "ask for less".to_owned())];
    let details = ErrorDetails::with_error_info("TOO_MUCH", "lodge", hint);
    Status::with_error_details(tonic::Code::ResourceExhausted, "that is too much", details)
}

/// A refusal whose message is its reason.
fn refused(code: tonic::Code, reason: &str) -> Status {
    let details = ErrorDetails::with_error_info(reason, "lodge", []);
    Status::with_error_details(code, reason, details)
}

/// The name or id that a request says.
fn named(sandbox: Option<pb::SandboxRef>) -> String {
    use pb::sandbox_ref::Ref;
    match sandbox.and_then(|sandbox| sandbox.r#ref) {
        Some(Ref::Name(name)) => name,
        Some(Ref::Id(id)) => id,
        None => String::new(),
    }
}
