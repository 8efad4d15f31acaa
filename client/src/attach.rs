//! Getting back to a run that was started before: by this client or another one, live or ended.

use std::future::IntoFuture;
use std::pin::Pin;

use lodge_proto::v1 as pb;

use crate::client::Client;
use crate::error::Result;
use crate::reconnect::Tries;
use crate::sandbox::{Sandbox, SandboxRef};
use crate::stream::{Begun, Have, RunStream};

/// Where a run is.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    pub(crate) client: Client,
    pub(crate) sandbox: SandboxRef,
}

impl Origin {
    /// The events of a run from these bytes on.
    pub(crate) async fn attach(&self, run_id: &str, have: Have) -> Result<Begun> {
        let request = pb::AttachRequest {
            sandbox: Some(self.sandbox.to_wire()),
            run_id: run_id.to_owned(),
            stdout_offset: have.stdout,
            stderr_offset: have.stderr,
        };
        Begun::from_wire(self.client.exec().attach(request).await?.into_inner()).await
    }
}

/// A run to be attached to. Await it for its events.
#[must_use = "nothing is attached to until it is awaited"]
#[derive(Debug)]
pub struct Attach {
    origin: Origin,
    run_id: String,
    have: Have,
}

impl Sandbox {
    /// The events of a run that was started before: what it wrote, what it writes, its end. It may be live or have
    /// ended; a restart of the daemon changes nothing. Dropping the stream leaves the run as it is.
    ///
    /// # Errors
    /// When awaited: NOT_FOUND if the sandbox or the run does not exist, OUT_OF_RANGE for an offset beyond the end.
    pub fn attach(&self, run_id: impl Into<String>) -> Attach {
        Attach {
            origin: self.origin(),
            run_id: run_id.into(),
            have: Have::default(),
        }
    }
}

impl Attach {
    /// Begins standard output at this byte instead of the first.
    pub fn stdout_offset(mut self, offset: u64) -> Self {
        self.have.stdout = offset;
        self
    }

    /// Begins standard error at this byte instead of the first.
    pub fn stderr_offset(mut self, offset: u64) -> Self {
        self.have.stderr = offset;
        self
    }
}

impl IntoFuture for Attach {
    type Output = Result<RunStream>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<RunStream>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let mut tries = Tries::new(self.origin.client.reconnect);
            let attach = || self.origin.attach(&self.run_id, self.have);
            let begun = tries.answer(attach).await?;
            Ok(RunStream::new(self.origin, begun, self.have))
        })
    }
}
