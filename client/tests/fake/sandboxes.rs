// Sandboxes: one that always runs, and a few that are told apart by their names.

use std::time::Duration;

use lodge_proto::v1 as pb;
use pb::sandbox_service_server::SandboxService;
use tokio_stream::StreamExt as _;
use tonic::{Request, Response};

use super::{Answer, Events, Fake, ID, SECOND_ID, named, refusal, refused, sandbox};

#[tonic::async_trait]
impl SandboxService for Fake {
    async fn acquire(&self, request: Request<pb::AcquireRequest>) -> Answer<pb::AcquireResponse> {
        let request = request.into_inner();
        self.note(|asked| asked.acquire = request.clone());
        if request.name.starts_with('-') {
            return Err(refusal());
        }
        if request.name == "frozen" && request.resume() == pb::ResumeMode::Error {
            return Err(refused(
                tonic::Code::FailedPrecondition,
                "SANDBOX_IS_FROZEN",
            ));
        }
        let sandbox = pb::Sandbox {
            name: request.name,
            image: request.image,
            ..sandbox()
        };
        Ok(Response::new(pb::AcquireResponse {
            sandbox: Some(sandbox),
            created: true,
        }))
    }

    async fn get(&self, request: Request<pb::GetSandboxRequest>) -> Answer<pb::Sandbox> {
        match named(request.into_inner().sandbox).as_str() {
            SECOND_ID => Err(refused(tonic::Code::NotFound, "SANDBOX_NOT_FOUND")),
            _ => Ok(Response::new(sandbox())),
        }
    }

    async fn list(
        &self,
        request: Request<pb::ListSandboxesRequest>,
    ) -> Answer<pb::ListSandboxesResponse> {
        let request = request.into_inner();
        self.note(|asked| asked.list = request.clone());
        // Two pages, so that a client that forgets the second one is caught.
        let (name, next) = match request.page_token.as_str() {
            "" => ("first", "more"),
            _ => ("second", ""),
        };
        let sandboxes = vec![pb::Sandbox {
            name: name.into(),
            ..sandbox()
        }];
        Ok(Response::new(pb::ListSandboxesResponse {
            sandboxes,
            next_page_token: next.into(),
        }))
    }

    async fn start(&self, _: Request<pb::StartSandboxRequest>) -> Answer<pb::Sandbox> {
        Ok(Response::new(sandbox()))
    }

    async fn stop(&self, _: Request<pb::StopSandboxRequest>) -> Answer<pb::Sandbox> {
        Ok(Response::new(sandbox()))
    }

    /// Answers as if all that was asked for held at once.
    async fn update(&self, request: Request<pb::UpdateSandboxRequest>) -> Answer<pb::Sandbox> {
        let request = request.into_inner();
        self.note(|asked| asked.update = request.clone());
        Ok(Response::new(pb::Sandbox {
            labels: request.set_labels,
            idle: request.idle,
            ..sandbox()
        }))
    }

    async fn pause(
        &self,
        request: Request<pb::PauseSandboxRequest>,
    ) -> Answer<pb::PauseSandboxResponse> {
        if named(request.into_inner().sandbox) == "stopped" {
            return Err(refused(
                tonic::Code::FailedPrecondition,
                "SANDBOX_NOT_RUNNING",
            ));
        }
        let sandbox = pb::Sandbox {
            state: pb::SandboxState::Frozen.into(),
            ..sandbox()
        };
        Ok(Response::new(pb::PauseSandboxResponse {
            sandbox: Some(sandbox),
            reclaimed_bytes: Some(5 << 20),
        }))
    }

    async fn resume(&self, _: Request<pb::ResumeSandboxRequest>) -> Answer<pb::Sandbox> {
        Ok(Response::new(sandbox()))
    }

    type WatchStream = Events<pb::SandboxEvent>;

    /// Tells two sandboxes and breaks off; asked again, it tells one of them, and that this one goes.
    async fn watch(
        &self,
        request: Request<pb::WatchSandboxesRequest>,
    ) -> Answer<Self::WatchStream> {
        use pb::sandbox_event::Event;
        let request = request.into_inner();
        self.note(|asked| asked.watches.push(request.clone()));
        if request.labels.contains_key("fake:refuse") {
            return Err(refusal());
        }
        let sandbox = |id: &str, name: &str, state: pb::SandboxState| {
            let (id, name, labels) = (id.into(), name.into(), request.labels.clone());
            let state = state.into();
            Event::Sandbox(pb::Sandbox {
                id,
                name,
                state,
                labels,
                ..sandbox()
            })
        };
        let is_first = self.asked.lock().expect("no panic").watches.len() == 1;
        let (events, last) = match is_first {
            true => (
                vec![
                    sandbox(ID, "first", pb::SandboxState::Running),
                    sandbox(SECOND_ID, "second", pb::SandboxState::Stopped),
                    Event::Synced(pb::WatchSynced {}),
                    sandbox(ID, "first", pb::SandboxState::Frozen),
                ],
                Some(Err(refused(tonic::Code::Unavailable, "DAEMON_STOPPING"))),
            ),
            false => (
                vec![
                    sandbox(ID, "first", pb::SandboxState::Running),
                    Event::Synced(pb::WatchSynced {}),
                    Event::Deleted(ID.into()),
                ],
                None,
            ),
        };
        let events = events
            .into_iter()
            .map(|event| Ok(pb::SandboxEvent { event: Some(event) }));
        let told = tokio_stream::iter(events.chain(last).collect::<Vec<_>>());
        match is_first {
            true => Ok(Response::new(Box::pin(told))),
            false => Ok(Response::new(Box::pin(told.chain(tokio_stream::pending())))),
        }
    }

    async fn stats(&self, request: Request<pb::SandboxStatsRequest>) -> Answer<pb::SandboxStats> {
        let stats = match named(request.into_inner().sandbox).as_str() {
            "missing" => return Err(refused(tonic::Code::NotFound, "SANDBOX_NOT_FOUND")),
            "stopped" => pb::SandboxStats {
                state: pb::SandboxState::Stopped.into(),
                log_bytes: 2048,
                ..Default::default()
            },
            _ => pb::SandboxStats {
                state: pb::SandboxState::Running.into(),
                memory_bytes: Some(3 << 20),
                memory_limit_bytes: Some(2 << 30),
                cpu_time: prost_types::Duration::try_from(Duration::from_millis(61_500)).ok(),
                pids: Some(3),
                pids_limit: Some(2048),
                oom_kills: Some(1),
                kept_runs: 7,
                disk_bytes: Some(10 << 30),
                disk_limit_bytes: Some(10 << 30),
                inodes: Some(12),
                ..Default::default()
            },
        };
        Ok(Response::new(stats))
    }

    async fn delete(
        &self,
        _: Request<pb::DeleteSandboxRequest>,
    ) -> Answer<pb::DeleteSandboxResponse> {
        Ok(Response::new(pb::DeleteSandboxResponse {}))
    }
}
