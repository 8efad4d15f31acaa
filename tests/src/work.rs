//! Work that people do, done twice: in a sandbox, and on the host's own file system with the very same programs, which are
//! those of the image, unpacked.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::image::{self, Shared};

/// The user that runs get by default in test images.
const USER: u32 = 1000;
/// Below it each work has a directory, at the same path on either side: paths get into what is built.
const HOME: &str = "/home/user";
/// What either side has in its environment, and nothing else that matters: so what is built is the same byte for byte.
pub const ENVIRONMENT: &[(&str, &str)] = &[
    ("HOME", "/home/user"),
    ("LANG", "C.UTF-8"),
    ("PATH", "/usr/local/bin:/usr/bin:/bin"),
    ("PYTHONHASHSEED", "0"),
    ("SOURCE_DATE_EPOCH", "1700000000"),
    ("GIT_AUTHOR_NAME", "a"),
    ("GIT_AUTHOR_EMAIL", "a@example"),
    ("GIT_AUTHOR_DATE", "1700000000 +0000"),
    ("GIT_COMMITTER_NAME", "c"),
    ("GIT_COMMITTER_EMAIL", "c@example"),
    ("GIT_COMMITTER_DATE", "1700000000 +0000"),
    // No collection of garbage in the background, beside what follows.
    ("GIT_CONFIG_COUNT", "1"),
    ("GIT_CONFIG_KEY_0", "gc.auto"),
    ("GIT_CONFIG_VALUE_0", "0"),
];

/// The image's programs on the host's file system, in a directory of one work's own, which goes with this.
#[derive(Debug)]
pub struct OnHost {
    root: PathBuf,
    dir: PathBuf,
    workdir: String,
}

impl OnHost {
    /// For the work of this name; no two of one name at once.
    pub async fn new(name: &str) -> Result<Self> {
        let root = image::unpacked(Shared::Work).await?;
        let workdir = workdir(name);
        let dir = root.join(workdir.trim_start_matches('/'));
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        fs::create_dir(&dir).with_context(|| format!("create {}", dir.display()))?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))?;
        chown(&dir, Some(USER), Some(USER))?;
        Ok(Self { root, dir, workdir })
    }

    /// Runs a program with these bytes to read; what it wrote.
    pub fn run(&self, argv: &[&str], extra: &[(&str, &str)], input: &[u8]) -> Result<Vec<u8>> {
        let mut command = Command::new("chroot");
        command.arg(format!("--userspec={USER}:{USER}"));
        command.arg(&self.root);
        command.args([
            "/usr/bin/env",
            "--chdir",
            &self.workdir,
            "--ignore-environment",
        ]);
        let variables = ENVIRONMENT.iter().chain(extra);
        command.args(variables.map(|(name, value)| format!("{name}={value}")));
        command.args(argv);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command
            .stderr(Stdio::piped())
            .spawn()
            .context("run chroot")?;
        let mut stdin = child.stdin.take().context("it has a standard input")?;
        let input = input.to_vec();
        // Beside: it may write before it has read everything.
        let writing = std::thread::spawn(move || stdin.write_all(&input));
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(
            output.status.success(),
            "{argv:?} on the host: {}\n{said}",
            output.status
        );
        writing
            .join()
            .ok()
            .context("the writer")?
            .context("give it its input")?;
        Ok(output.stdout)
    }
}

impl Drop for OnHost {
    fn drop(&mut self) {
        // The next one of this name removes what is left.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Where the work of this name is done.
pub fn workdir(name: &str) -> String {
    format!("{HOME}/{name}")
}
