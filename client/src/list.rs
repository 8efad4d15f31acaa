//! Listing sandboxes: all, or those of a filter.

use std::collections::BTreeMap;
use std::future::{Future, IntoFuture};
use std::pin::Pin;

use lodge_proto::v1 as pb;

use crate::client::Client;
use crate::error::Result;
use crate::info::{SandboxInfo, SandboxState};
use crate::wire::{CALL_DEADLINE, answer};

/// Sandboxes asked for at once; the server's maximum.
const PAGE: i32 = 1000;

/// The sandboxes of the caller's tenant, by name. Await it for all of them, after narrowing it down. Never wakes one.
#[derive(Debug, Clone)]
#[must_use = "nothing is asked until it is awaited"]
pub struct List {
    client: Client,
    labels: BTreeMap<String, String>,
    states: Vec<SandboxState>,
}

impl List {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            labels: BTreeMap::new(),
            states: Vec::new(),
        }
    }

    /// Only those with this label, beside the labels asked for before.
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(name.into(), value.into());
        self
    }

    /// Those in this state, beside the states asked for before; without any, those in all states.
    pub fn state(mut self, state: SandboxState) -> Self {
        self.states.push(state);
        self
    }

    async fn all(self) -> Result<Vec<SandboxInfo>> {
        let mut request = pb::ListSandboxesRequest {
            page_size: PAGE,
            page_token: String::new(),
            labels: self.labels.into_iter().collect(),
            states: self.states.into_iter().map(SandboxState::to_wire).collect(),
        };
        let mut all = Vec::new();
        loop {
            let mut service = self.client.sandboxes();
            let page = answer(Some(CALL_DEADLINE), service.list(request.clone())).await?;
            for sandbox in page.sandboxes {
                all.push(SandboxInfo::from_wire(sandbox)?);
            }
            if page.next_page_token.is_empty() {
                return Ok(all);
            }
            request.page_token = page.next_page_token;
        }
    }
}

impl IntoFuture for List {
    type Output = Result<Vec<SandboxInfo>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.all())
    }
}
