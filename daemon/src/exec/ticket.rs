//! Whether a call is to start a run, or has one already by its name. Starts nothing (see `engine`), and wakes no sandbox.

use super::engine::{Engine, Origin, Started};
use super::requests::Request;
use super::spec::RunSpec;
use super::table::{Claim, Claimed, RunTable};
use crate::error::{Error, Result};

/// Bodies of calls above this are hashed on a blocking thread, in bytes.
const HASHED_HERE_MAX_BYTES: usize = 64 << 10;

/// What a call comes to.
pub enum Launch {
    /// An earlier call with its name has a run already.
    Earlier(Box<Started>),
    /// A run is to be started.
    New(Box<Ticket>),
}

/// The right to start the run of one call.
pub struct Ticket {
    pub(super) spec: RunSpec,
    pub(super) claim: Option<Claim>,
}

impl Ticket {
    /// Lets go of it: whoever waits for its run gets the error, too.
    pub fn refused(self, error: Error) -> Error {
        self.claim
            .into_iter()
            .for_each(|claim| claim.refused(&error));
        error
    }
}

impl Engine {
    /// Looks whether a call is to start a run, or has one already by its name. Wakes no sandbox.
    pub async fn admit(&self, runs: &RunTable, spec: RunSpec) -> Result<Launch> {
        let Some(id) = spec.request_id.clone() else {
            return Ok(Launch::New(Box::new(Ticket { spec, claim: None })));
        };
        let key = &self.retention().key;
        let number = key.number(&id);
        let (request, spec) = self.request(id, spec).await?;
        Ok(match runs.claim(request, number).await? {
            Claimed::Earlier(run) => {
                let started = Started::new(run, None, Origin::EarlierCall);
                Launch::Earlier(Box::new(started))
            }
            Claimed::New(claim) => Launch::New(Box::new(Ticket {
                spec,
                claim: Some(claim),
            })),
        })
    }

    async fn request(&self, id: String, spec: RunSpec) -> Result<(Request, RunSpec)> {
        let key = self.retention().key.clone();
        if spec.body_bytes() <= HASHED_HERE_MAX_BYTES {
            return Ok((key.request(&id, &spec), spec));
        }
        let hashed = tokio::task::spawn_blocking(move || (key.request(&id, &spec), spec)).await;
        hashed.map_err(|e| Error::internal("INTERNAL", "the call's body cannot be hashed", e))
    }
}
