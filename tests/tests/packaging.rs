//! Attacks D18 and D20: what is installed for systemd, what the daemon says where that gave it too little, and hosts that lack
//! what no sandbox can do without.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use lodge_tests::binary;
use lodge_tests::cgroup;
use lodge_tests::daemon::{Daemon, Options};
use lodge_tests::room::Room;
use lodge_tests::slot::{Slot, Width};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// Everything that a service of systemd needs is installed, and the unit keeps sandboxes through a stop, a restart and an upgrade.
#[test]
fn attack_d18_unit_is_installed_and_keeps_sandboxes() -> Result<()> {
    let dest = tempfile::tempdir()?;
    let built = binary::path("lodged")?;
    let built = built.parent().context("a directory")?;
    let output = Command::new("make")
        .arg("--directory")
        .arg(root())
        .args(["--no-print-directory", "install-files", "PREFIX=/opt/lodge"])
        .arg(format!("DESTDIR={}", dest.path().display()))
        .arg(format!("BUILT={}", built.display()))
        .output()?;
    ensure!(output.status.success(), "{}", text(&output));
    for program in ["lodged", "lodge"] {
        let path = dest.path().join("opt/lodge/bin").join(program);
        let mode = fs::metadata(&path)?.permissions().mode() & 0o777;
        ensure!(mode == 0o755, "{program} has mode {mode:o}");
    }
    ensure!(dest.path().join("etc/lodge/lodged.toml.example").exists());
    ensure!(
        dest.path()
            .join("opt/lodge/lib/sysusers.d/lodge.conf")
            .exists()
    );
    let unit = dest
        .path()
        .join("opt/lodge/lib/systemd/system/lodged.service");
    let unit = fs::read_to_string(unit)?;
    for line in [
        "ExecStart=/opt/lodge/bin/lodged",
        "Type=notify",
        "KillMode=process",
        "Delegate=yes",
        "RuntimeDirectory=lodge",
        "RuntimeDirectoryPreserve=yes",
        "StateDirectory=lodge",
        "OOMPolicy=continue",
    ] {
        ensure!(
            unit.lines().any(|other| other == line),
            "the unit has no {line}"
        );
    }
    ensure!(!unit.contains('@'), "a place of the unit was not filled in");
    // The example is a configuration that the daemon takes, as it is and with every key in it.
    let example = fs::read_to_string(dest.path().join("etc/lodge/lodged.toml.example"))?;
    let every_key: String = example
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(rest) if rest.contains(" = ") && !rest.starts_with(' ') => format!("{rest}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    for config in [example, every_key] {
        let file = dest.path().join("lodged.toml");
        fs::write(&file, &config)?;
        let output = Command::new(binary::path("lodged")?)
            .env_clear()
            .arg("--config")
            .arg(file)
            .arg("--check-config")
            .output()?;
        ensure!(output.status.success(), "{}\n{config}", text(&output));
    }
    Ok(())
}

/// A v2 group by the name of a service, gone when it is dropped.
struct Service {
    name: String,
    dir: PathBuf,
}

impl Service {
    fn new(name: &str) -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let v2 = mounts
            .lines()
            .find(|line| line.contains(" - cgroup2 "))
            .and_then(|line| line.split(' ').nth(4))
            .context("cgroup v2 is mounted")?;
        let dir = Path::new(v2).join(name);
        fs::create_dir_all(&dir)?;
        let name = name.to_owned();
        Ok(Self { name, dir })
    }

    /// What `lodged doctor` says from within it.
    fn doctor(&self, config: &Path) -> Result<String> {
        let script = format!(
            "echo $$ > {}/cgroup.procs && exec \"$@\"",
            self.dir.display()
        );
        let output = Command::new("sh")
            .args(["-c", &script, "sh"])
            .arg(binary::path("lodged")?)
            .arg("--config")
            .arg(config)
            .arg("doctor")
            .env_clear()
            .output()?;
        Ok(text(&output))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // A second panic would hide the first.
        let removed = cgroup::remove(&self.name);
        assert!(removed.is_ok() || std::thread::panicking(), "{removed:?}");
    }
}

/// A unit without `Delegate=yes` is found out, and the doctor says how to mend it.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d18_missing_delegation_is_told() -> Result<()> {
    let daemon = Daemon::new().await?;
    let service = Service::new(&format!("{}.service", daemon.cgroup()))?;
    let said = service.doctor(daemon.config_file())?;
    ensure!(
        said.contains("not delegated") && said.contains("Delegate=yes"),
        "{said}"
    );
    Ok(())
}

/// A stop by systemd with `KillMode=process` ends the main process alone. What it left is taken up by the next one.
#[tokio::test(flavor = "multi_thread")]
async fn attack_d18_stop_and_start_keep_sandboxes() -> Result<()> {
    let mut daemon = Daemon::start(Options::default()).await?;
    let room: Room = daemon.api().room("kept").await?;
    let pid = room.holder_pid(&daemon.cgroup())?;
    for _ in 0..3 {
        ensure!(daemon.terminate()?.success());
        daemon.start_again()?;
        ensure!(room.holder_pid(&daemon.cgroup())? == pid);
        ensure!(room.run("echo fine").await?.ok()? == "fine");
    }
    daemon.stop()
}

/// `lodged` and `lodged doctor` in a mount namespace where `file` reads as `text`.
fn with_file(config: &Path, file: &str, text: &str, args: &[&str]) -> Result<Output> {
    let dir = tempfile::tempdir()?;
    let fake = dir.path().join("fake");
    fs::write(&fake, text)?;
    let script = format!("mount --bind {} {file} && exec \"$@\"", fake.display());
    Ok(Command::new("unshare")
        .args(["--mount", "--", "sh", "-c", &script, "sh"])
        .arg(binary::path("lodged")?)
        .arg("--config")
        .arg(config)
        .args(args)
        .output()?)
}

/// On a host without what no sandbox can do without, the doctor explains what is missing and the daemon refuses to start with
/// the same words; there is no flag to start it all the same.
#[test]
fn attack_d20_missing_features_are_explained_and_refused() -> Result<()> {
    // Its groups and directories, which go with it: the doctor makes a parent group.
    let slot = Slot::take(Width::default())?;
    let config = slot.config_file();
    let text_of_config = format!(
        "state_dir = {:?}\nruntime_dir = {:?}\ncgroup_parent = {:?}\n",
        slot.state().join("lodge"),
        slot.home().join("run"),
        slot.cgroup()
    );
    fs::write(&config, text_of_config)?;
    let without = [
        ("/proc/filesystems", "nodev\tproc\n", "overlay-filesystem"),
        (
            "/proc/sys/user/max_user_namespaces",
            "0\n",
            "user-namespaces",
        ),
        (
            "/proc/sys/kernel/seccomp/actions_avail",
            "allow\n",
            "seccomp-filter",
        ),
        ("/proc/sys/kernel/osrelease", "4.19.0\n", "kernel-version"),
    ];
    for (file, content, name) in without {
        for args in [&["doctor"][..], &[]] {
            let output = with_file(&config, file, content, args)?;
            let said = text(&output);
            ensure!(!output.status.success(), "{name}: it was accepted: {said}");
            ensure!(
                said.contains(name) && said.contains("hint"),
                "{name}: {said}"
            );
        }
    }
    let output = Command::new("setpriv")
        .args(["--bounding-set=-sys_admin", "--"])
        .arg(binary::path("lodged")?)
        .arg("--config")
        .arg(&config)
        .output()?;
    let said = text(&output);
    ensure!(
        !output.status.success() && said.contains("CAP_SYS_ADMIN"),
        "{said}"
    );
    ensure!(
        !slot.state().join("lodge/sandboxes").exists(),
        "it began to work"
    );
    Ok(())
}
