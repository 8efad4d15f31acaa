//! The handle of one sandbox.

use lodge_proto::v1 as pb;

use crate::attach::Origin;
use crate::client::Client;
use crate::error::Result;
use crate::info::SandboxInfo;
use crate::process::Process;
use crate::run::Run;
use crate::stats::SandboxStats;
use crate::update::Update;
use crate::wire::{CALL_DEADLINE, answer, present};

/// Names a sandbox. A string converts to a name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SandboxRef {
    /// The caller's name for it.
    Name(String),
    /// The daemon's id for it; never reused.
    Id(String),
}

impl From<&str> for SandboxRef {
    fn from(name: &str) -> Self {
        Self::Name(name.to_owned())
    }
}

impl From<String> for SandboxRef {
    fn from(name: String) -> Self {
        Self::Name(name)
    }
}

impl SandboxRef {
    pub(crate) fn to_wire(&self) -> pb::SandboxRef {
        use pb::sandbox_ref::Ref;
        let named = match self {
            Self::Name(name) => Ref::Name(name.clone()),
            Self::Id(id) => Ref::Id(id.clone()),
        };
        pb::SandboxRef { r#ref: Some(named) }
    }
}

/// One sandbox. Cheap to clone. Dropping it does nothing to the sandbox.
///
/// A handle that came from acquiring holds the sandbox's id: once that sandbox was deleted its calls are answered
/// NOT_FOUND, also if another one has taken the name.
#[derive(Debug, Clone)]
pub struct Sandbox {
    client: Client,
    reference: SandboxRef,
}

/// A sandbox that was paused.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Paused {
    /// The sandbox, frozen.
    pub info: SandboxInfo,
    /// Memory that went back to the host, in bytes. `None` where the host cannot take memory back, or where the sandbox
    /// was frozen already.
    pub reclaimed_bytes: Option<u64>,
}

impl Sandbox {
    pub(crate) fn new(client: Client, reference: SandboxRef) -> Self {
        Self { client, reference }
    }

    /// What its calls name it by.
    pub fn reference(&self) -> &SandboxRef {
        &self.reference
    }

    /// A script for `bash -c` (`sh -c` where the image has no bash). Nothing runs until the result is awaited.
    pub fn run(&self, script: impl Into<String>) -> Run {
        Run::shell(self.client.clone(), self.reference.clone(), script.into())
    }

    /// A program with its arguments, without a shell. Nothing runs until the result is awaited.
    pub fn run_argv<I>(&self, argv: I) -> Run
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        let argv = argv.into_iter().map(Into::into).collect();
        Run::argv(self.client.clone(), self.reference.clone(), argv)
    }

    /// What the daemon knows of it. Never wakes it.
    ///
    /// # Errors
    /// NOT_FOUND if it does not exist.
    pub async fn info(&self) -> Result<SandboxInfo> {
        let request = pb::GetSandboxRequest {
            sandbox: self.wire_ref(),
        };
        let call = answer(Some(CALL_DEADLINE), self.client.sandboxes().get(request)).await;
        SandboxInfo::from_wire(call?)
    }

    /// Starts it if it is stopped. A run does so by itself.
    ///
    /// # Errors
    /// NOT_FOUND if it does not exist; FAILED_PRECONDITION if it is damaged.
    pub async fn start(&self) -> Result<SandboxInfo> {
        let request = pb::StartSandboxRequest {
            sandbox: self.wire_ref(),
        };
        let call = answer(Some(CALL_DEADLINE), self.client.sandboxes().start(request)).await;
        SandboxInfo::from_wire(call?)
    }

    /// Ends all its processes and keeps its files.
    ///
    /// # Errors
    /// NOT_FOUND if it does not exist.
    pub async fn stop(&self) -> Result<SandboxInfo> {
        let request = pb::StopSandboxRequest {
            sandbox: self.wire_ref(),
        };
        let call = answer(Some(CALL_DEADLINE), self.client.sandboxes().stop(request)).await;
        SandboxInfo::from_wire(call?)
    }

    /// Freezes all its processes: they get no CPU, and the timeouts of its runs stand still. The next call that needs
    /// it thaws it. One that is frozen is left as it is.
    ///
    /// # Errors
    /// NOT_FOUND if it does not exist; FAILED_PRECONDITION if it is stopped; ABORTED if it did not freeze within 2 s, in
    /// which case it runs on.
    pub async fn pause(&self) -> Result<Paused> {
        let request = pb::PauseSandboxRequest {
            sandbox: self.wire_ref(),
        };
        let call = answer(Some(CALL_DEADLINE), self.client.sandboxes().pause(request)).await?;
        let sandbox = present(call.sandbox, "a paused sandbox is missing")?;
        Ok(Paused {
            info: SandboxInfo::from_wire(sandbox)?,
            reclaimed_bytes: call.reclaimed_bytes,
        })
    }

    /// Thaws it if it is frozen. A run does so by itself.
    ///
    /// # Errors
    /// NOT_FOUND if it does not exist; FAILED_PRECONDITION if it is stopped.
    pub async fn resume(&self) -> Result<SandboxInfo> {
        let request = pb::ResumeSandboxRequest {
            sandbox: self.wire_ref(),
        };
        let call = answer(Some(CALL_DEADLINE), self.client.sandboxes().resume(request)).await;
        SandboxInfo::from_wire(call?)
    }

    /// Changes its limits, idle policy or labels: await it, after saying what.
    pub fn update(&self) -> Update {
        Update::new(self.client.clone(), self.reference.clone())
    }

    /// What it uses now. Never wakes it, and is no activity.
    ///
    /// # Errors
    /// NOT_FOUND if it does not exist.
    pub async fn stats(&self) -> Result<SandboxStats> {
        let request = pb::SandboxStatsRequest {
            sandbox: self.wire_ref(),
        };
        let call = answer(Some(CALL_DEADLINE), self.client.sandboxes().stats(request)).await;
        SandboxStats::from_wire(call?)
    }

    /// Ends all its processes and removes its files. Works from every state.
    ///
    /// # Errors
    /// NOT_FOUND if it does not exist.
    pub async fn delete(&self) -> Result<()> {
        let request = pb::DeleteSandboxRequest {
            sandbox: self.wire_ref(),
        };
        answer(Some(CALL_DEADLINE), self.client.sandboxes().delete(request)).await?;
        Ok(())
    }

    /// Its live processes, by pid. Never wakes it.
    ///
    /// # Errors
    /// NOT_FOUND if it does not exist.
    pub async fn ps(&self) -> Result<Vec<Process>> {
        let request = pb::ListProcessesRequest {
            sandbox: self.wire_ref(),
        };
        let call = answer(
            Some(CALL_DEADLINE),
            self.client.exec().list_processes(request),
        )
        .await;
        call?
            .processes
            .into_iter()
            .map(Process::from_wire)
            .collect()
    }

    /// Ends every process of a run: SIGTERM, two seconds, then SIGKILL. Returns how many were ended; zero if the run
    /// had none left.
    ///
    /// # Errors
    /// NOT_FOUND if the sandbox or the run does not exist.
    pub async fn kill(&self, run_id: impl Into<String>) -> Result<u32> {
        let request = pb::KillRequest {
            sandbox: self.wire_ref(),
            run_id: run_id.into(),
        };
        let call = answer(Some(CALL_DEADLINE), self.client.exec().kill(request)).await;
        Ok(call?.killed)
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn origin(&self) -> Origin {
        Origin {
            client: self.client.clone(),
            sandbox: self.reference.clone(),
        }
    }

    // Every request that concerns a sandbox has its reference as an optional message.
    pub(crate) fn wire_ref(&self) -> Option<pb::SandboxRef> {
        Some(self.reference.to_wire())
    }
}
