//! The connection, and the calls that concern no one sandbox.

use std::time::Duration;

use lodge_proto::v1 as pb;
use pb::exec_service_client::ExecServiceClient;
use pb::image_service_client::ImageServiceClient;
use pb::node_service_client::NodeServiceClient;
use pb::sandbox_service_client::SandboxServiceClient;
use tonic::transport::Channel;

use crate::acquire::Acquire;
use crate::endpoint::{self, DEFAULT_ENDPOINT, ENDPOINT_VARIABLE};
use crate::error::Result;
use crate::image::Images;
use crate::info::SandboxInfo;
use crate::list::List;
use crate::node::{DoctorReport, NodeInfo};
use crate::reconnect::RECONNECT_WITHIN;
use crate::sandbox::{Sandbox, SandboxRef};
use crate::watch::Watch;
use crate::wire::{CALL_DEADLINE, answer};

/// The largest answer: two output streams of 8 MiB, and room for the rest.
const MAX_ANSWER_BYTES: usize = 20 << 20;
/// What a run's deadline allows beyond the command's timeout: starting a stopped sandbox, the grace of two seconds
/// after the timeout, the drain of its pipes, and sending 16 MiB of output over a slow line.
const DEADLINE_MARGIN: Duration = Duration::from_secs(30);

/// A connection to a daemon. Cheap to clone; clones share the connection.
#[derive(Debug, Clone)]
pub struct Client {
    channel: Channel,
    deadline_margin: Duration,
    /// How long a broken connection is tried anew.
    pub(crate) reconnect: Duration,
}

impl Client {
    /// Connects to `unix:///path/to/socket` or `http://host:port`.
    ///
    /// # Errors
    /// [`crate::Error::Endpoint`] if it is neither, [`crate::Error::Connect`] if no daemon answers there.
    pub async fn connect(endpoint: impl AsRef<str>) -> Result<Self> {
        let channel = endpoint::connect(endpoint.as_ref()).await?;
        Ok(Self {
            channel,
            deadline_margin: DEADLINE_MARGIN,
            reconnect: RECONNECT_WITHIN,
        })
    }

    /// Connects to what the environment variable `LODGE_ENDPOINT` names, else to [`DEFAULT_ENDPOINT`].
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn from_env() -> Result<Self> {
        match std::env::var(ENDPOINT_VARIABLE) {
            Ok(endpoint) if !endpoint.is_empty() => Self::connect(endpoint).await,
            _ => Self::connect(DEFAULT_ENDPOINT).await,
        }
    }

    /// Changes what a run's deadline allows beyond the command's timeout (30 s).
    #[must_use]
    pub fn deadline_margin(mut self, margin: Duration) -> Self {
        self.deadline_margin = margin;
        self
    }

    /// Changes for how long runs, their streams and watches try to go on after the connection broke (30 s): long enough
    /// for a restart of the daemon. Zero: not at all.
    #[must_use]
    pub fn reconnect_within(mut self, limit: Duration) -> Self {
        self.reconnect = limit;
        self
    }

    /// Gets the sandbox of this name or creates it: await the result, after setting what a new one is made of.
    pub fn sandbox(&self, name: impl Into<String>) -> Acquire {
        Acquire::new(self.clone(), name.into())
    }

    /// The handle of a sandbox that is expected to exist. Makes no call. A `&str` is a name.
    pub fn at(&self, sandbox: impl Into<SandboxRef>) -> Sandbox {
        Sandbox::new(self.clone(), sandbox.into())
    }

    /// What the daemon knows of one sandbox. Never wakes it.
    ///
    /// # Errors
    /// NOT_FOUND if there is none.
    pub async fn get(&self, sandbox: impl Into<SandboxRef>) -> Result<SandboxInfo> {
        self.at(sandbox).info().await
    }

    /// The sandboxes of the caller's tenant, by name: await it, after narrowing it down. Never wakes one.
    pub fn list(&self) -> List {
        List::new(self.clone())
    }

    /// Each sandbox as it is, then each change: await it, after narrowing it down. Never wakes one, and is no activity.
    pub fn watch(&self) -> Watch {
        Watch::new(self.clone())
    }

    /// Importing, listing and removing images.
    pub fn images(&self) -> Images {
        Images::new(self.clone())
    }

    /// The daemon's versions and features.
    ///
    /// # Errors
    /// Those of the connection.
    pub async fn info(&self) -> Result<NodeInfo> {
        let info = answer(Some(CALL_DEADLINE), self.node().info(pb::InfoRequest {})).await?;
        Ok(NodeInfo::from_wire(info))
    }

    /// Checks every kernel feature in use on the daemon's host, and boots a probe sandbox there.
    ///
    /// # Errors
    /// Those of the connection. A failed check is part of the report, not an error.
    pub async fn doctor(&self) -> Result<DoctorReport> {
        let report = answer(
            Some(CALL_DEADLINE),
            self.node().doctor(pb::DoctorRequest {}),
        )
        .await?;
        DoctorReport::from_wire(report)
    }

    pub(crate) fn run_deadline(&self, timeout: Duration) -> Duration {
        timeout.saturating_add(self.deadline_margin)
    }

    pub(crate) fn sandboxes(&self) -> SandboxServiceClient<Channel> {
        SandboxServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER_BYTES)
    }

    pub(crate) fn exec(&self) -> ExecServiceClient<Channel> {
        ExecServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER_BYTES)
    }

    pub(crate) fn image_service(&self) -> ImageServiceClient<Channel> {
        ImageServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER_BYTES)
    }

    pub(crate) fn node(&self) -> NodeServiceClient<Channel> {
        NodeServiceClient::new(self.channel.clone())
    }
}
