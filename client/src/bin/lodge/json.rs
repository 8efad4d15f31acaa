//! The objects that `--json` prints, one a line. Their keys are a promise: add some, never change or remove one.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use lodge_client::{
    Captured, Check, DoctorReport, HostDisk, Image, LimitStatus, LogExtent, NodeDisk, NodeInfo,
    Outcome, Output, Process, RunInfo, SandboxDisk, SandboxEvent, SandboxInfo, SandboxStats,
    StorageAbility,
};
use serde_json::{Map, Value, json};

use crate::{failure, units};

/// The result of a run. `stdout` and `stderr` are text; where that is not exact, since bytes were dropped or replaced,
/// the bytes kept are in `stdout_head_base64` and `stdout_tail_base64` too.
pub(crate) fn output(output: &Output) -> Value {
    let mut object = outcome(&output.outcome);
    captured("stdout", &output.stdout, &mut object);
    captured("stderr", &output.stderr, &mut object);
    Value::Object(object)
}

fn outcome(outcome: &Outcome) -> Map<String, Value> {
    let mut object = Map::new();
    for (key, value) in [
        ("run_id", json!(outcome.run_id)),
        ("end_reason", json!(outcome.end_reason.as_str())),
        ("exit_code", json!(outcome.exit_code)),
        ("signal", json!(outcome.signal)),
        ("wait_status", json!(outcome.wait_status)),
        ("left_running", json!(outcome.left_running)),
        ("duration_ms", millis(outcome.duration)),
        ("cpu_time_ms", millis(outcome.cpu_time)),
        ("peak_memory_bytes", json!(outcome.peak_memory_bytes)),
        ("oom_kills", json!(outcome.oom_kills)),
        ("message", json!(outcome.message)),
        ("disk_full", disk_full(outcome)),
    ] {
        object.insert(key.to_owned(), value);
    }
    object
}

fn disk_full(outcome: &Outcome) -> Value {
    let places = outcome.disk_full.iter().map(|place| place.as_str());
    places.collect()
}

fn captured(name: &str, captured: &Captured, object: &mut Map<String, Value>) {
    let text = captured.text();
    let exact = text.replacements == 0 && !captured.truncated();
    object.insert(name.to_owned(), json!(text.text));
    object.insert(format!("{name}_bytes"), json!(captured.total_bytes));
    object.insert(
        format!("{name}_dropped_bytes"),
        json!(captured.dropped_bytes),
    );
    object.insert(format!("{name}_replacements"), json!(text.replacements));
    if !exact {
        object.insert(
            format!("{name}_head_base64"),
            json!(BASE64.encode(&captured.head)),
        );
        object.insert(
            format!("{name}_tail_base64"),
            json!(BASE64.encode(&captured.tail)),
        );
    }
}

/// A run, live or ended. `end` is as the result of a run, without its output; null while its command lives.
pub(crate) fn run(run: &RunInfo) -> Value {
    let extent = |extent: &LogExtent| {
        json!({
            "bytes": extent.total_bytes,
            "gap_from": extent.gap.start,
            "gap_to": extent.gap.end,
        })
    };
    json!({
        "run_id": run.run_id,
        "request_id": run.request_id,
        "command": run.command,
        "live": run.is_live(),
        "started_at": time(run.started_at),
        "ended_at": time(run.ended_at),
        "end": run.outcome.as_ref().map(outcome),
        "stdout": extent(&run.stdout),
        "stderr": extent(&run.stderr),
    })
}

/// Milliseconds with at most three decimals; null where it is not known.
fn millis(duration: Option<Duration>) -> Value {
    json!(duration.map(|duration| duration.as_micros() as f64 / 1000.0))
}

fn time(time: Option<SystemTime>) -> Value {
    json!(time.map(|time| units::time(Some(time))))
}

/// A failure of Lodge's own.
pub(crate) fn error(error: &anyhow::Error) -> Value {
    let api = error
        .downcast_ref::<lodge_client::Error>()
        .and_then(|e| e.api());
    json!({ "error": {
        "message": failure::message(error),
        "hint": failure::hint(error),
        "code": api.map(|api| format!("{:?}", api.code)),
        "reason": api.map(|api| &api.reason),
    } })
}

/// A sandbox.
pub(crate) fn sandbox(sandbox: &SandboxInfo) -> Value {
    json!({
        "id": sandbox.id,
        "name": sandbox.name,
        "tenant": sandbox.tenant,
        "state": sandbox.state.to_string(),
        "state_reason": sandbox.state_reason,
        "image": sandbox.image,
        "image_digest": sandbox.image_digest,
        "created_at": time(sandbox.created_at),
        "labels": sandbox.labels,
        "env": sandbox.env,
        "hostname": sandbox.hostname,
        "live_runs": sandbox.live_runs,
        "open_streams": sandbox.open_streams,
        "no_new_privileges": sandbox.no_new_privileges,
        "read_only_root": sandbox.read_only_root,
        "idle": {
            "freeze_after_seconds": seconds(sandbox.idle.freeze_after),
            "stop_after_seconds": seconds(sandbox.idle.stop_after),
            "delete_after_seconds": seconds(sandbox.idle.delete_after),
        },
        "idle_for_ms": millis(sandbox.idle_for),
        "limits": sandbox.limits.iter().map(limit).collect::<Vec<_>>(),
    })
}

/// Zero means never; null where it is not known.
fn seconds(duration: Option<Duration>) -> Value {
    json!(duration.map(|duration| duration.as_secs()))
}

/// A change of sandboxes.
pub(crate) fn sandbox_event(event: &SandboxEvent) -> Value {
    match event {
        SandboxEvent::Changed(info) => json!({ "event": "changed", "sandbox": sandbox(info) }),
        SandboxEvent::Deleted { id, name } => {
            json!({ "event": "deleted", "id": id, "name": name })
        }
        SandboxEvent::Synced => json!({ "event": "synced" }),
        _ => json!({ "event": "unknown" }),
    }
}

/// What a sandbox uses.
pub(crate) fn stats(name: &str, stats: &SandboxStats) -> Value {
    json!({
        "name": name,
        "state": stats.state.to_string(),
        "memory_bytes": stats.memory_bytes,
        "memory_peak_bytes": stats.memory_peak_bytes,
        "memory_limit_bytes": stats.memory_limit_bytes,
        "cpu_time_ms": millis(stats.cpu_time),
        "pids": stats.pids,
        "pids_limit": stats.pids_limit,
        "oom_kills": stats.oom_kills,
        "live_runs": stats.live_runs,
        "open_streams": stats.open_streams,
        "kept_runs": stats.kept_runs,
        "log_bytes": stats.log_bytes,
        "uptime_ms": millis(stats.uptime),
        "disk_bytes": stats.disk_bytes,
        "disk_limit_bytes": stats.disk_limit_bytes,
        "inodes": stats.inodes,
        "inodes_limit": stats.inodes_limit,
    })
}

fn limit(limit: &LimitStatus) -> Value {
    json!({
        "name": limit.name,
        "requested": limit.requested,
        "effective": limit.effective,
        "enforcement": limit.enforcement.to_string(),
        "reason": limit.reason,
    })
}

/// A process.
pub(crate) fn process(process: &Process) -> Value {
    json!({
        "run_id": process.run_id,
        "pid": process.pid,
        "uid": process.uid,
        "state": process.state,
        "command": process.command,
        "rss_bytes": process.rss_bytes,
        "run_started_at": time(process.run_started_at),
        "run_live": process.run_live,
    })
}

/// An image.
pub(crate) fn image(image: &Image) -> Value {
    json!({
        "digest": image.digest,
        "names": image.names,
        "size_bytes": image.size_bytes,
        "imported_at": time(image.imported_at),
        "env": image.env,
        "user": image.user,
        "workdir": image.workdir,
        "layers": image.layers,
        "sandboxes": image.sandboxes,
        "left_out": image.left_out,
    })
}

/// What the doctor found. `lodged doctor --json` prints the same.
pub(crate) fn doctor(report: &DoctorReport) -> Value {
    let check = |check: &Check| {
        json!({
            "name": check.name,
            "status": check.status.to_string(),
            "detail": check.detail,
            "hint": check.hint,
        })
    };
    json!({ "ok": report.ok, "checks": report.checks.iter().map(check).collect::<Vec<_>>() })
}

/// What is stored on the daemon's host.
pub(crate) fn node_disk(disk: &NodeDisk) -> Value {
    let ability = |ability: &StorageAbility| {
        json!({
            "name": ability.name,
            "supported": ability.supported,
            "reason": ability.reason,
        })
    };
    let sandbox = |sandbox: &SandboxDisk| {
        json!({
            "id": sandbox.id,
            "name": sandbox.name,
            "state": sandbox.state.to_string(),
            "used_bytes": sandbox.used_bytes,
            "limit_bytes": sandbox.limit_bytes,
            "inodes": sandbox.inodes,
            "limit_inodes": sandbox.limit_inodes,
        })
    };
    json!({
        "host": host_disk(&disk.host),
        "images_bytes": disk.images_bytes,
        "logs_bytes": disk.logs_bytes,
        "abilities": disk.abilities.iter().map(ability).collect::<Vec<_>>(),
        "sandboxes": disk.sandboxes.iter().map(sandbox).collect::<Vec<_>>(),
    })
}

/// What all sandboxes share.
pub(crate) fn host_disk(host: &HostDisk) -> Value {
    json!({
        "driver": host.driver,
        "path": host.path,
        "size_bytes": host.size_bytes,
        "used_bytes": host.used_bytes,
        "host_free_bytes": host.host_free_bytes,
        "reserve_bytes": host.reserve_bytes,
        "being_removed": host.being_removed,
    })
}

/// The daemon.
pub(crate) fn node(node: &NodeInfo) -> Value {
    json!({
        "daemon_version": node.daemon_version,
        "api_version": node.api_version,
        "min_client_version": node.min_client_version,
        "features": node.features,
        "storage_driver": node.storage_driver,
        "cgroup_mode": node.cgroup_mode,
        "default_image": node.default_image,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 0.001963 s times 1,000 is 1.9629999999999999 in binary.
    #[test]
    fn milliseconds_have_three_decimals_at_most() {
        for (nanoseconds, text) in [
            (1_963_000, "1.963"),
            (1_963_999, "1.963"),
            (2_000_000, "2.0"),
            (120_003_007_000, "120003.007"),
        ] {
            let shown = millis(Some(Duration::from_nanos(nanoseconds))).to_string();
            assert_eq!(shown, text);
        }
        assert_eq!(millis(None), Value::Null);
    }
}
