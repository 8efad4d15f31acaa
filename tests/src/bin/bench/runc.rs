//! runc's command line, which is the only interface that it has.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use lodge_tests::cgroup;
use serde_json::{Value, json};

use crate::world::Identity;
use lodge_tests::rootfs::Rootfs;

/// runc's own state, apart from that of an engine on the host.
const ROOT: &str = "/run/lodge-bench-runc";
/// Parent cgroup of the bench's containers.
const CGROUP: &str = "lodge-bench-runc";

/// runc with a bundle per command; its containers and cgroups go when this is dropped.
pub(crate) struct Runc {
    bundles: tempfile::TempDir,
    rootfs: PathBuf,
}

impl Runc {
    /// `None` if runc is not installed.
    pub(crate) fn find(rootfs: &Rootfs) -> Result<Option<Self>> {
        if Command::new("runc").arg("--version").output().is_err() {
            return Ok(None);
        }
        let bundles = tempfile::tempdir().context("a directory for runc's bundles")?;
        Ok(Some(Self {
            bundles,
            rootfs: rootfs.dir().to_owned(),
        }))
    }

    /// A bundle as `runc spec` makes it, with this command, user and environment.
    pub(crate) fn bundle(
        &self,
        name: &str,
        identity: &Identity,
        command: &[&str],
    ) -> Result<PathBuf> {
        let dir = self.bundles.path().join(name);
        fs::create_dir_all(&dir)?;
        succeed(Command::new("runc").arg("spec").current_dir(&dir))?;
        let path = dir.join("config.json");
        let mut spec: Value = serde_json::from_slice(&fs::read(&path)?).context("runc's spec")?;
        let env: Vec<String> = identity
            .env
            .iter()
            .map(|(k, v)| format!("{k}={v}"))
            .collect();
        spec["process"]["terminal"] = json!(false);
        spec["process"]["args"] = json!(command);
        spec["process"]["env"] = json!(env);
        spec["process"]["cwd"] = json!(identity.workdir);
        spec["process"]["user"] = json!({ "uid": identity.uid, "gid": identity.gid });
        spec["root"] = json!({ "path": self.rootfs, "readonly": false });
        spec["linux"]["cgroupsPath"] = json!(format!("/{CGROUP}/{name}"));
        fs::write(&path, spec.to_string())?;
        Ok(dir)
    }

    /// Runs a bundle's command in a new container, to its end; runc removes the container.
    pub(crate) fn run(&self, bundle: &Path, id: &str) -> Result<()> {
        succeed(runc().args(["run", "--bundle"]).arg(bundle).arg(id)).map(|_| ())
    }

    /// Starts a bundle's command in a new container and returns.
    pub(crate) fn start(&self, bundle: &Path, id: &str) -> Result<()> {
        succeed(
            runc()
                .args(["run", "--detach", "--bundle"])
                .arg(bundle)
                .arg(id),
        )
        .map(|_| ())
    }

    /// Runs a command in a running container.
    pub(crate) fn exec(&self, id: &str, identity: &Identity, command: &[&str]) -> Result<()> {
        // The user's environment and directory are those of the container's own process, as `runc exec` has it.
        let user = identity.numbers();
        succeed(runc().args(["exec", "--user", &user, id]).args(command)).map(|_| ())
    }
}

impl Drop for Runc {
    fn drop(&mut self) {
        for entry in fs::read_dir(ROOT).into_iter().flatten().flatten() {
            let _ = runc()
                .args(["delete", "--force"])
                .arg(entry.file_name())
                .output();
        }
        let _ = fs::remove_dir_all(ROOT);
        if let Err(error) = cgroup::remove(CGROUP) {
            eprintln!("bench: could not remove runc's cgroups: {error:#}");
        }
    }
}

fn runc() -> Command {
    let mut command = Command::new("runc");
    command.args(["--root", ROOT]);
    command
}

fn succeed(command: &mut Command) -> Result<Output> {
    // Files, not pipes, for `--detach`: the container's process would hold a pipe open.
    let command = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let output = command.output().context("start runc")?;
    ensure!(
        output.status.success(),
        "{command:?} ended with {}",
        output.status
    );
    Ok(output)
}
