//! `lodge.v1.ExecService`: translates, and decides nothing.

use std::pin::Pin;

use futures_core::Stream;
use lodge_proto::v1 as wire;
use tonic::{Request, Response, Status, Streaming};

use super::sandbox::{not_yet, sandbox_ref};
use crate::error::{Error, ErrorKind, Result};
use crate::exec::log::Piece;
use crate::exec::{self, RawRunSpec, Run, Started, ps};
use crate::sandbox::id::{RunId, Tenant};
use crate::sandbox::{Resume, SandboxRef};
use crate::service::Service;

mod messages;
mod session;

use session::Departure;

/// Bytes of a log that are returned if the caller does not say.
const READ_DEFAULT_BYTES: usize = 64 << 10;
/// Bytes of a log that are returned at most.
const READ_MAX_BYTES: usize = 1 << 20;

/// `lodge.v1.ExecService`.
#[derive(Clone)]
pub struct ExecServer<S>(S);

impl<S: Service> ExecServer<S> {
    /// Serves `service`.
    pub fn new(service: S) -> Self {
        Self(service)
    }

    async fn launch(
        &self,
        sandbox: &SandboxRef,
        raw: RawRunSpec,
        resume: Resume,
    ) -> Result<Started> {
        let engine = self.0.engine();
        // First what needs no sandbox: a call that cannot be right starts none.
        let spec = engine.check(raw)?;
        let handle = self.0.sandbox(&Tenant::default(), sandbox)?;
        let admission = handle.admit(resume).await?;
        engine.start(&handle, &admission, spec).await
    }

    fn find(&self, sandbox: Option<wire::SandboxRef>, run: &str) -> Result<Run> {
        let sandbox = sandbox_ref(sandbox)?;
        let run = RunId::parse(run)?;
        self.0
            .sandbox(&Tenant::default(), &sandbox)?
            .runs()
            .get(&run)
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
        let Started { run, pins, .. } = started;
        let caller = Departure::watch(run.clone(), call.on_disconnect);
        let result = run.end().await?;
        let output = run.output(&result).await?;
        drop(pins);
        caller.stayed();
        Ok(Response::new(messages::response(&result, output)))
    }

    type StartStream = Pin<Box<dyn Stream<Item = Result<wire::RunEvent, Status>> + Send>>;

    async fn start(
        &self,
        request: Request<Streaming<wire::StartRequest>>,
    ) -> Result<Response<Self::StartStream>, Status> {
        let mut requests = request.into_inner();
        let call = messages::start_from(requests.message().await?)?;
        let started = self.launch(&call.sandbox, call.raw, call.resume).await?;
        let events = session::serve(started, requests, call.on_disconnect);
        Ok(Response::new(Box::pin(events)))
    }

    type AttachStream = tokio_stream::Empty<Result<wire::RunEvent, Status>>;

    async fn attach(
        &self,
        _request: Request<wire::AttachRequest>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        Err(not_yet("Attach").into())
    }

    async fn get_run(
        &self,
        _request: Request<wire::GetRunRequest>,
    ) -> Result<Response<wire::RunInfo>, Status> {
        Err(not_yet("GetRun").into())
    }

    async fn list_runs(
        &self,
        _request: Request<wire::ListRunsRequest>,
    ) -> Result<Response<wire::ListRunsResponse>, Status> {
        Err(not_yet("ListRuns").into())
    }

    async fn search_log(
        &self,
        _request: Request<wire::SearchLogRequest>,
    ) -> Result<Response<wire::SearchLogResponse>, Status> {
        Err(not_yet("SearchLog").into())
    }

    async fn read_log(
        &self,
        request: Request<wire::ReadLogRequest>,
    ) -> Result<Response<wire::ReadLogResponse>, Status> {
        let request = request.into_inner();
        let stream = messages::stream_from(request.stream)?;
        let limit = read_limit(request.limit)?;
        let run = self.find(request.sandbox, &request.run_id)?;
        Ok(Response::new(
            read_log(&run, stream, request.offset, limit).await?,
        ))
    }

    async fn list_processes(
        &self,
        request: Request<wire::ListProcessesRequest>,
    ) -> Result<Response<wire::ListProcessesResponse>, Status> {
        let sandbox = sandbox_ref(request.into_inner().sandbox)?;
        let handle = self.0.sandbox(&Tenant::default(), &sandbox)?;
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
        let run = self.find(request.sandbox, &request.run_id)?;
        Ok(Response::new(wire::KillResponse {
            killed: run.kill().await?,
        }))
    }
}

fn read_limit(asked: u32) -> Result<usize> {
    match asked as usize {
        0 => Ok(READ_DEFAULT_BYTES),
        asked if asked <= READ_MAX_BYTES => Ok(asked),
        _ => Err(Error::invalid(
            "INVALID_READ_LIMIT",
            format!("limit is {asked}; it is 0 for the default, or 1 to {READ_MAX_BYTES}"),
        )),
    }
}

/// Reads at `offset`, or after the gap that is there.
async fn read_log(
    run: &Run,
    stream: exec::Stream,
    offset: u64,
    limit: usize,
) -> Result<wire::ReadLogResponse> {
    let log = run.log(stream);
    let total = log.len();
    if offset > total {
        return Err(Error::new(
            ErrorKind::OutOfRange,
            "OFFSET_BEYOND_END",
            format!("offset {offset} is beyond the end of the log, which has {total} bytes"),
        ));
    }
    let mut at = offset;
    loop {
        let piece = log.read(at, limit).await;
        match piece
            .map_err(|e| Error::internal("LOG_UNREADABLE", "the run's log cannot be read", e))?
        {
            Piece::Gap { to, .. } => at = to,
            Piece::End => {
                return Ok(wire::ReadLogResponse {
                    offset: at,
                    total_bytes: log.len(),
                    ..Default::default()
                });
            }
            Piece::Data { offset, bytes } => {
                return Ok(wire::ReadLogResponse {
                    offset,
                    data: bytes,
                    total_bytes: log.len(),
                    ..Default::default()
                });
            }
        }
    }
}
