//! Doing a step by the API, and what it was answered.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lodge_proto::v1::{self as pb, EndReason, SandboxState, run_spec};
use tokio::time::timeout;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::step::{Answer, Step};
use crate::api::{Api, by_name};

/// A call that is not answered within this time is stuck.
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);
/// The file that numbers are written to, in the user's home.
const FILE: &str = "numbers";

/// Does a step to the sandbox of this name. An error is an answer that no caller should ever get.
pub async fn perform(api: &Api, name: &str, step: Step) -> Result<Answer> {
    let answer = timeout(ANSWERED_WITHIN, ask(api, name, step)).await;
    let answer = answer.with_context(|| format!("{step:?} of {name} is stuck"))?;
    match answer {
        Ok(answer) => answer,
        Err(status) => refusal(&status).with_context(|| format!("{step:?} of {name}")),
    }
}

/// All sandboxes whose name starts with `prefix`, by name.
pub async fn seen(api: &Api, prefix: &str) -> Result<BTreeMap<String, (String, SandboxState)>> {
    let all = timeout(ANSWERED_WITHIN, api.list())
        .await
        .context("list is stuck")??;
    let ours = all.into_iter().filter(|one| one.name.starts_with(prefix));
    Ok(ours
        .map(|one| (one.name.clone(), (one.id.clone(), one.state())))
        .collect())
}

async fn ask(api: &Api, name: &str, step: Step) -> Result<Result<Answer>, Status> {
    let sandbox = by_name(name);
    let mut sandboxes = api.sandboxes();
    let now = match step {
        Step::Acquire => return acquire(api, name).await,
        Step::Write(number) => return run(api, name, &format!("echo {number} >>{FILE}")).await,
        Step::Read => return read(api, name).await,
        Step::Leave => {
            return run(api, name, "setsid sleep 1000 >/dev/null 2>&1 </dev/null &").await;
        }
        Step::Processes => {
            let request = pb::ListProcessesRequest { sandbox };
            let listed = api.exec().list_processes(request).await?.into_inner();
            return Ok(Ok(Answer::Count(listed.processes.len())));
        }
        Step::Delete => {
            sandboxes
                .delete(pb::DeleteSandboxRequest { sandbox })
                .await?;
            return Ok(Ok(Answer::Deleted));
        }
        Step::Pause => {
            let reply = sandboxes.pause(pb::PauseSandboxRequest { sandbox }).await?;
            reply.into_inner().sandbox.unwrap_or_default()
        }
        Step::Resume => {
            let reply = sandboxes
                .resume(pb::ResumeSandboxRequest { sandbox })
                .await?;
            reply.into_inner()
        }
        Step::Start => {
            let reply = sandboxes.start(pb::StartSandboxRequest { sandbox }).await?;
            reply.into_inner()
        }
        Step::Stop => {
            let reply = sandboxes.stop(pb::StopSandboxRequest { sandbox }).await?;
            reply.into_inner()
        }
        Step::Get => {
            let reply = sandboxes.get(pb::GetSandboxRequest { sandbox }).await?;
            reply.into_inner()
        }
    };
    Ok(Ok(Answer::Is(now.state())))
}

async fn acquire(api: &Api, name: &str) -> Result<Result<Answer>, Status> {
    let request = pb::AcquireRequest {
        name: name.into(),
        ..Default::default()
    };
    let reply = api.try_acquire(request).await?;
    let created = reply.created;
    let id = reply.sandbox.map(|sandbox| sandbox.id);
    Ok(id
        .context("an answer without a sandbox")
        .map(|id| Answer::Acquired { id, created }))
}

async fn read(api: &Api, name: &str) -> Result<Result<Answer>, Status> {
    let (result, stdout) = send(api, name, &format!("cat {FILE} 2>/dev/null; true")).await?;
    Ok(succeeded(&result).and_then(|answer| match answer {
        Answer::Ran => {
            let text = String::from_utf8(stdout).context("numbers are text")?;
            let numbers = text.lines().map(str::parse).collect::<Result<_, _>>();
            Ok(Answer::Numbers(
                numbers.with_context(|| format!("numbers: {text:?}"))?,
            ))
        }
        other => Ok(other),
    }))
}

async fn run(api: &Api, name: &str, script: &str) -> Result<Result<Answer>, Status> {
    let (result, _) = send(api, name, script).await?;
    Ok(succeeded(&result))
}

async fn send(api: &Api, name: &str, script: &str) -> Result<(pb::RunResult, Vec<u8>), Status> {
    let spec = pb::RunSpec {
        sandbox: by_name(name),
        command: Some(run_spec::Command::Shell(script.into())),
        ..Default::default()
    };
    let request = pb::RunRequest { spec: Some(spec) };
    let response = api.exec().run(request).await?.into_inner();
    let stdout = response.stdout.unwrap_or_default().head.to_vec();
    Ok((response.result.unwrap_or_default(), stdout))
}

fn succeeded(result: &pb::RunResult) -> Result<Answer> {
    match result.end_reason() {
        EndReason::SandboxStopped => Ok(Answer::Cut),
        EndReason::Exited => {
            ensure!(result.exit_code == 0, "a run failed: {result:?}");
            Ok(Answer::Ran)
        }
        _ => bail!("a run ended as {result:?}"),
    }
}

/// The daemon's own refusals have a reason code; what has none is the connection's end.
fn refusal(status: &Status) -> Result<Answer> {
    let details = status.get_error_details();
    match details.error_info() {
        Some(info) => Ok(Answer::Refused(info.reason.clone())),
        None if is_broken(status.code()) => Ok(Answer::Unanswered),
        None => bail!("refused without a reason code: {status:?}"),
    }
}

fn is_broken(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal
    )
}
