//! The daemon's configuration: one file, environment and flags on top, every mistake told, none ignored.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use anyhow::{Result, ensure};
use lodge_tests::binary;

/// A configuration file of the test's own.
struct File {
    dir: tempfile::TempDir,
}

impl File {
    fn new(text: &str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        fs::write(dir.path().join("lodged.toml"), text)?;
        Ok(Self { dir })
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("lodged.toml")
    }

    /// `lodged --check-config` with this file, these variables and these flags.
    fn check(&self, env: &[(&str, &str)], flags: &[&str]) -> Result<Output> {
        let mut command = Command::new(binary::path("lodged")?);
        command
            .arg("--config")
            .arg(self.path())
            .arg("--check-config")
            .args(flags);
        Ok(command.env_clear().envs(env.iter().copied()).output()?)
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// A good file is fine, an empty one too.
#[test]
fn good_configuration_is_accepted() -> Result<()> {
    for good in [
        "",
        "log_level = \"debug\"\n[limits]\npids = 100\n",
        "max_timeout_seconds = 600\n",
    ] {
        let output = File::new(good)?.check(&[], &[])?;
        ensure!(output.status.success(), "{good}: {}", text(&output));
    }
    Ok(())
}

/// All mistakes are told at once, each with its key.
#[test]
fn every_mistake_is_told_at_once() -> Result<()> {
    let bad = "state_dri = \"/x\"\nlog_level = \"loud\"\ndefault_timeout_seconds = \"long\"\nstate_dir = \"relative\"\n\
        [limits]\npids = 1\nmemroy_bytes = 1\n[limts]\npids = 5\n";
    let output = File::new(bad)?.check(&[], &[])?;
    ensure!(!output.status.success(), "it was accepted");
    let told = text(&output);
    for word in [
        "state_dri",
        "log_level",
        "default_timeout_seconds",
        "state_dir",
        "pids",
        "memroy_bytes",
        "limts",
    ] {
        ensure!(told.contains(word), "{word} is not told: {told}");
    }
    Ok(())
}

/// What is no TOML is told with its place.
#[test]
fn broken_syntax_is_told() -> Result<()> {
    let output = File::new("log_level = \n")?.check(&[], &[])?;
    ensure!(
        !output.status.success() && text(&output).contains("line 1"),
        "{}",
        text(&output)
    );
    Ok(())
}

/// A file that was named must exist.
#[test]
fn named_file_must_exist() -> Result<()> {
    let file = File::new("")?;
    fs::remove_file(file.path())?;
    let output = file.check(&[], &[])?;
    ensure!(
        !output.status.success() && text(&output).contains("lodged.toml"),
        "{}",
        text(&output)
    );
    Ok(())
}

/// The environment overrides the file, and flags override both.
#[test]
fn flags_override_the_environment_and_that_the_file() -> Result<()> {
    let file = File::new("log_level = \"loud\"\n")?;
    ensure!(
        file.check(&[("LODGE_LOG_LEVEL", "debug")], &[])?
            .status
            .success()
    );
    ensure!(
        !file
            .check(&[("LODGE_LOG_LEVEL", "louder")], &[])?
            .status
            .success()
    );
    let by_flag = file.check(&[("LODGE_LOG_LEVEL", "louder")], &["--log-level", "warn"])?;
    ensure!(by_flag.status.success(), "{}", text(&by_flag));
    Ok(())
}

/// Flags that do not exist are errors.
#[test]
fn unknown_flags_are_errors() -> Result<()> {
    let output = File::new("")?.check(&[], &["--state-dri", "/x"])?;
    ensure!(
        !output.status.success() && text(&output).contains("--state-dri"),
        "{}",
        text(&output)
    );
    Ok(())
}
