//! The same probes in other runtimes, with the same files: which findings are ours, and which are everybody's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use lodge_tests::cgroup;
use lodge_tests::prober;
use lodge_tests::redteam::{Expect, Probe, Program};
use lodge_tests::rootfs::Rootfs;
use serde_json::{Value, json};

/// runc's own state, apart from that of an engine on the host.
const RUNC_ROOT: &str = "/run/lodge-redteam-runc";
/// Parent cgroup of its containers.
const RUNC_CGROUP: &str = "lodge-redteam-runc";

/// Runtimes that are installed.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    rootfs: Option<PathBuf>,
    has_bwrap: bool,
    has_runc: bool,
}

/// Whether the attack was held, by the runtime's name; nothing if that is not installed.
pub(crate) type Held = Vec<(&'static str, Option<bool>)>;

impl Peers {
    /// Looks for them.
    pub(crate) fn find(rootfs: &Rootfs) -> Result<Self> {
        let is_there = |program| Command::new(program).arg("--version").output().is_ok();
        Ok(Self {
            rootfs: Some(rootfs.dir().to_owned()),
            has_bwrap: is_there("bwrap"),
            has_runc: is_there("runc"),
        })
    }

    /// Tries a probe in each.
    pub(crate) fn try_all(&self, probe: &Probe) -> Held {
        let Some(rootfs) = &self.rootfs else {
            return Held::new();
        };
        let command = command(probe);
        let held = |has: bool, run: fn(&Path, &[String]) -> Result<Output>| {
            let output = has.then(|| run(rootfs, &command))?;
            Some(output.is_ok_and(|output| comes_to(&output, probe.expect)))
        };
        vec![
            ("bwrap", held(self.has_bwrap, bwrap)),
            ("runc", held(self.has_runc, runc)),
        ]
    }
}

fn command(probe: &Probe) -> Vec<String> {
    let (program, text) = match probe.program {
        Program::Shell(script) => ("bash", script.to_owned()),
        Program::Python(body) => ("python3", prober::program(body)),
    };
    vec![format!("/usr/bin/{program}"), "-c".into(), text]
}

fn bwrap(rootfs: &Path, command: &[String]) -> Result<Output> {
    Command::new("bwrap")
        .arg("--unshare-all")
        .arg("--ro-bind")
        .arg(rootfs)
        .args([
            "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/root",
        ])
        .arg("--")
        .args(command)
        .stdin(Stdio::null())
        .output()
        .context("start bwrap")
}

/// With the bundle that `runc spec` makes, but read-only files and this command.
fn runc(rootfs: &Path, command: &[String]) -> Result<Output> {
    const ID: &str = "probe";
    let bundle = tempfile::tempdir().context("a directory for runc's bundle")?;
    let made = Command::new("runc")
        .arg("spec")
        .current_dir(bundle.path())
        .output()
        .context("start runc")?;
    ensure!(made.status.success(), "runc spec: {}", made.status);
    let path = bundle.path().join("config.json");
    let mut spec: Value = serde_json::from_slice(&fs::read(&path)?).context("runc's spec")?;
    spec["process"]["terminal"] = json!(false);
    spec["process"]["args"] = json!(command);
    spec["root"] = json!({ "path": rootfs, "readonly": true });
    spec["linux"]["cgroupsPath"] = json!(format!("/{RUNC_CGROUP}/{ID}"));
    if let Some(mounts) = spec["mounts"].as_array_mut() {
        for place in ["/tmp", "/root"] {
            mounts.push(json!({ "destination": place, "type": "tmpfs", "source": "tmpfs" }));
        }
    }
    fs::write(&path, spec.to_string())?;
    let output = Command::new("runc")
        .args(["--root", RUNC_ROOT, "run", "--bundle"])
        .arg(bundle.path())
        .arg(ID)
        .stdin(Stdio::null())
        .output()
        .context("start runc");
    let _ = fs::remove_dir_all(RUNC_ROOT);
    cgroup::remove(RUNC_CGROUP)?;
    output
}

fn comes_to(output: &Output, expected: Expect) -> bool {
    let text = String::from_utf8_lossy(&output.stdout);
    match expected {
        Expect::Says(said) => text == said,
        Expect::Answers(answers) => prober::expect_in(&text, answers).is_ok(),
        // Ends of runs are ours.
        Expect::Ends(_) => false,
    }
}
