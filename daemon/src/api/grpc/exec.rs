//! `lodge.v1.ExecService`: translates, and decides nothing.

use std::pin::Pin;

use futures_core::Stream;
use futures_util::StreamExt as _;
use lodge_proto::v1 as wire;
use tonic::{Request, Response, Status, Streaming};

use super::sandbox::sandbox_ref;
use crate::error::Result;
use crate::exec::stream::{Events, Places};
use crate::exec::{Launch, RawRunSpec, Run, Started, ps};
use crate::sandbox::id::{RunId, Tenant};
use crate::sandbox::{Resume, SandboxRef, StreamUse};
use crate::service::Service;

/// The stream of an `Attach`.
mod attach;
/// Reading and searching a run's log.
mod logs;
/// Messages from and to the domain's words.
mod messages;
/// Runs as they are told of, and pages of them.
mod runs;
/// The stream of a `Start`.
mod session;

use session::Departure;

/// The events of a run on their way to a caller.
type RunEvents = Pin<Box<dyn Stream<Item = Result<wire::RunEvent, Status>> + Send>>;

/// `lodge.v1.ExecService`.
#[derive(Clone)]
pub struct ExecServer<S> {
    service: S,
    streams: Places,
}

impl<S: Service> ExecServer<S> {
    /// Serves `service`.
    pub fn new(service: S) -> Self {
        Self {
            service,
            streams: Places::new(),
        }
    }

    async fn launch(
        &self,
        sandbox: &SandboxRef,
        raw: RawRunSpec,
        resume: Resume,
    ) -> Result<Started> {
        let engine = self.service.engine();
        // First what needs no sandbox: a call that cannot be right starts none.
        let spec = engine.check(raw)?;
        let handle = self.service.sandbox(&Tenant::default(), sandbox)?;
        let ticket = match engine.admit(handle.runs(), spec).await? {
            Launch::Earlier(started) => return Ok(*started),
            Launch::New(ticket) => ticket,
        };
        match handle.admit(resume).await {
            Ok(admission) => engine.start(&handle, &admission, *ticket).await,
            Err(error) => Err(ticket.refused(error)),
        }
    }

    /// The sandbox of a stream, in use for as long as the stream is open.
    fn open_stream(&self, sandbox: &SandboxRef) -> Result<StreamUse> {
        let handle = self.service.sandbox(&Tenant::default(), sandbox)?;
        Ok(handle.open_stream())
    }

    async fn find(&self, sandbox: Option<wire::SandboxRef>, run: &str) -> Result<Run> {
        let sandbox = sandbox_ref(sandbox)?;
        let run = RunId::parse(run)?;
        let handle = self.service.sandbox(&Tenant::default(), &sandbox)?;
        handle.runs().find(&run).await
    }
}

#[tonic::async_trait]
impl<S: Service> wire::exec_service_server::ExecService for ExecServer<S> {
    async fn run(
        &self,
        request: Request<wire::RunRequest>,
    ) -> Result<Response<wire::RunResponse>, Status> {
        let call = messages::call_from(request.into_inner().spec)?;
        let started = self.launch(&call.sandbox, call.raw, call.resume).await?;
        let Started {
            run, pins, origin, ..
        } = started;
        let caller = Departure::watch(run.clone(), call.on_disconnect);
        let result = run.end().await?;
        let output = run.output(&result).await?;
        drop(pins);
        caller.stayed();
        Ok(Response::new(messages::response(&result, output, origin)))
    }

    type StartStream = RunEvents;

    async fn start(
        &self,
        request: Request<Streaming<wire::StartRequest>>,
    ) -> Result<Response<Self::StartStream>, Status> {
        let mut requests = request.into_inner();
        let call = messages::start_from(requests.message().await?)?;
        // Before the run: it is not to go on for a caller who is refused.
        let place = self.streams.take()?;
        let open = self.open_stream(&call.sandbox)?;
        let started = self.launch(&call.sandbox, call.raw, call.resume).await?;
        let events = session::serve(started, requests, call.on_disconnect, place);
        Ok(Response::new(while_open(open, events)))
    }

    type AttachStream = RunEvents;

    async fn attach(
        &self,
        request: Request<wire::AttachRequest>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let request = request.into_inner();
        let offsets = attach::offsets_from(&request);
        let sandbox = sandbox_ref(request.sandbox.clone())?;
        let run = self.find(request.sandbox, &request.run_id).await?;
        let events = Events::from(run.clone(), offsets, self.streams.take()?)?;
        // Only now: a call that is refused is no use of the sandbox.
        let open = self.open_stream(&sandbox)?;
        Ok(Response::new(while_open(open, attach::serve(&run, events))))
    }

    async fn get_run(
        &self,
        request: Request<wire::GetRunRequest>,
    ) -> Result<Response<wire::RunInfo>, Status> {
        let request = request.into_inner();
        let run = self.find(request.sandbox, &request.run_id).await?;
        Ok(Response::new(runs::info(run.account())))
    }

    async fn list_runs(
        &self,
        request: Request<wire::ListRunsRequest>,
    ) -> Result<Response<wire::ListRunsResponse>, Status> {
        let request = request.into_inner();
        let page = runs::page(&request)?;
        let sandbox = sandbox_ref(request.sandbox)?;
        let handle = self.service.sandbox(&Tenant::default(), &sandbox)?;
        let listed = handle.runs().list(page).await?;
        Ok(Response::new(runs::response(&listed)))
    }

    async fn search_log(
        &self,
        request: Request<wire::SearchLogRequest>,
    ) -> Result<Response<wire::SearchLogResponse>, Status> {
        let mut request = request.into_inner();
        let sandbox = request.sandbox.take();
        let stream = messages::stream_from(request.stream)?;
        let run = self.find(sandbox, &request.run_id).await?;
        Ok(Response::new(logs::search(&run, stream, request).await?))
    }

    async fn read_log(
        &self,
        request: Request<wire::ReadLogRequest>,
    ) -> Result<Response<wire::ReadLogResponse>, Status> {
        let mut request = request.into_inner();
        let sandbox = request.sandbox.take();
        let stream = messages::stream_from(request.stream)?;
        let run = self.find(sandbox, &request.run_id).await?;
        Ok(Response::new(logs::read(&run, stream, &request).await?))
    }

    async fn list_processes(
        &self,
        request: Request<wire::ListProcessesRequest>,
    ) -> Result<Response<wire::ListProcessesResponse>, Status> {
        let sandbox = sandbox_ref(request.into_inner().sandbox)?;
        let handle = self.service.sandbox(&Tenant::default(), &sandbox)?;
        let processes = match handle.live_now() {
            Some(live) => ps::processes(&live, handle.runs()).await?,
            None => Vec::new(),
        };
        let processes = processes.into_iter().map(messages::process).collect();
        Ok(Response::new(wire::ListProcessesResponse { processes }))
    }

    async fn kill(
        &self,
        request: Request<wire::KillRequest>,
    ) -> Result<Response<wire::KillResponse>, Status> {
        let request = request.into_inner();
        let run = self.find(request.sandbox, &request.run_id).await?;
        Ok(Response::new(wire::KillResponse {
            killed: run.kill().await?,
        }))
    }
}

/// The events, and the sandbox in use for as long as somebody takes them.
fn while_open(
    open: StreamUse,
    events: impl Stream<Item = Result<wire::RunEvent, Status>> + Send + 'static,
) -> RunEvents {
    Box::pin(events.inspect(move |_| {
        let _held = &open;
    }))
}
