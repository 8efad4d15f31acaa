//! Case M1: the host has one controller of cgroups less than it should.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use lodge_proto::v1 as pb;
use lodge_tests::api::reason;
use lodge_tests::daemon::{Daemon, Options};
use lodge_tests::prober::HOG;
use lodge_tests::room::Room;
use lodge_tests::{binary, cgroup};
use pb::Enforcement;
use tonic::Code;

const MIB: i64 = 1 << 20;
const ALL: [&str; 3] = ["memory", "pids", "cpu"];

/// Where version 2 is mounted on a host that has it alone.
const V2: &str = "/sys/fs/cgroup";

/// A lodged that does not have a controller of cgroups, and is the same process. What is given back has to live as long as it does.
fn blind_to(controller: &str, script: &Path) -> Result<Option<Inner>> {
    let lodged = binary::path("lodged")?;
    let lodged = lodged.display();
    let inner = match Path::new(V2).join("cgroup.controllers").exists() {
        true => Some(Inner::without(controller)?),
        false => None,
    };
    let text = match &inner {
        None => {
            let place = v1_place(controller)?;
            format!(
                "exec unshare --mount -- sh -c 'umount {place} && exec \"$@\"' sh {lodged} \"$@\""
            )
        }
        // Its root of cgroups is `inner`, and it is itself in a group of that, as below a service manager.
        Some(Inner(outer)) => format!(
            "echo $$ >{outer}/inner/cgroup.procs || exit 1
            exec unshare --cgroup --mount -- sh -c 'umount {V2} && mount -t cgroup2 none {V2} && mkdir -p {V2}/self && \
            echo $$ >{V2}/self/cgroup.procs && exec \"$@\"' sh {lodged} \"$@\"",
            outer = outer.display()
        ),
    };
    fs::write(script, format!("#!/bin/sh\n{text}\n"))?;
    fs::set_permissions(script, fs::Permissions::from_mode(0o755))?;
    Ok(inner)
}

/// Where version 1 of a controller is mounted.
fn v1_place(controller: &str) -> Result<String> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let has = |line: &&str| {
        let mut words = line.split_whitespace().skip(2);
        words.next() == Some("cgroup")
            && words.any(|options| options.split(',').any(|option| option == controller))
    };
    let mount = mounts.lines().find(has);
    let place = mount.and_then(|line| line.split_whitespace().nth(1));
    let place = place.with_context(|| format!("{controller} is not mounted as version 1"))?;
    Ok(place.to_owned())
}

/// A group of version 2, with an `inner` one to which it hands all controllers down but one. Goes with what is in it.
struct Inner(PathBuf);

impl Inner {
    fn without(controller: &str) -> Result<Self> {
        let outer = Path::new(V2).join(format!("lodge-tests-m1-{controller}"));
        let others = ALL.iter().filter(|name| **name != controller);
        let others: Vec<String> = others.map(|name| format!("+{name}")).collect();
        let all = ALL.map(|name| format!("+{name}")).join(" ");
        fs::write(Path::new(V2).join("cgroup.subtree_control"), all)?;
        fs::create_dir_all(&outer)?;
        let inner = Self(outer);
        fs::write(inner.0.join("cgroup.subtree_control"), others.join(" "))?;
        fs::create_dir_all(inner.0.join("inner"))?;
        Ok(inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let name = self.0.file_name().unwrap_or_default().to_string_lossy();
        // One that is left is no other test's, and empty.
        let _ = cgroup::remove(&name);
    }
}

fn asked(allow_degraded: bool) -> pb::AcquireRequest {
    pb::AcquireRequest {
        name: "m1".into(),
        limits: Some(pb::Limits {
            memory_bytes: Some(64 * MIB),
            pids: Some(32),
            cpu_millis: Some(500),
            ..Default::default()
        }),
        allow_degraded,
        ..Default::default()
    }
}

/// The limit of the missing controller is refused, or degraded as asked; the others are held, and the doctor says it.
async fn without(controller: &str) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let program = dir.path().join("lodged");
    let _inner = blind_to(controller, &program)?;
    let daemon = Daemon::start(Options {
        program: Some(program),
        ..Options::default()
    })
    .await?;
    let refused = daemon.api().try_acquire(asked(false)).await;
    let refused = refused.err().context("it was created")?;
    ensure!(
        refused.code() == Code::Unimplemented
            && reason(&refused) == "LIMIT_NOT_ENFORCEABLE"
            && refused.message().contains(controller),
        "{refused:?}"
    );
    ensure!(daemon.api().list().await?.is_empty());
    let room = daemon.api().acquire(asked(true)).await?;
    for status in room.get().await?.limits {
        let is_of = status.name.starts_with(controller);
        if !ALL.iter().any(|name| status.name.starts_with(name)) {
            continue;
        }
        let expected = match is_of {
            true => Enforcement::Degraded,
            false => Enforcement::Enforced,
        };
        ensure!(status.enforcement() == expected, "{status:?}");
        ensure!(
            status.effective.is_some() != is_of && status.reason.is_empty() != is_of,
            "{status:?}"
        );
    }
    if controller != "memory" {
        memory_is_held(&room).await?;
    }
    if controller != "pids" {
        pids_are_held(&room).await?;
    }
    let report = daemon
        .api()
        .node()
        .doctor(pb::DoctorRequest {})
        .await?
        .into_inner();
    let name = format!("{controller}-controller");
    let check = report.checks.iter().find(|check| check.name == name);
    let check = check.context(name)?;
    ensure!(
        check.status() != pb::CheckStatus::Ok && !check.hint.is_empty(),
        "{check:?}"
    );
    room.delete().await?;
    Ok(())
}

async fn memory_is_held(room: &Room) -> Result<()> {
    let ran = room.python(HOG).await?;
    ensure!(ran.reason() == pb::EndReason::OomKilled, "{}", ran.story());
    Ok(())
}

async fn pids_are_held(room: &Room) -> Result<()> {
    // A shell would try again for a quarter of a minute.
    let bomb = "
import os, time
for n in range(60):
    if os.fork() == 0: time.sleep(100)";
    let ran = room.python(bomb).await?;
    ensure!(ran.code() != 0, "{}", ran.story());
    let message = &ran.result.message;
    ensure!(message.contains("pids limit of 32"), "{}", ran.story());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn case_m1_no_cpu_controller() -> Result<()> {
    without("cpu").await
}

#[tokio::test(flavor = "multi_thread")]
async fn case_m1_no_memory_controller() -> Result<()> {
    without("memory").await
}

#[tokio::test(flavor = "multi_thread")]
async fn case_m1_no_pids_controller() -> Result<()> {
    without("pids").await
}
