//! strace on a process of the product: single system calls are made to fail, or the process is killed in one. A test's
//! own; strace is of the packages that `make deps` installs.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A running strace. Dropping it lets go of what it traces.
#[derive(Debug)]
pub struct Strace {
    child: Child,
    log: PathBuf,
}

impl Strace {
    /// Attaches to `pid` and all that it forks from now on. `inject` is the option's value, e.g.
    /// `mount:error=EPERM:when=2`; without it calls of the set `trace` are only listed. Writes to `log`.
    pub fn attach(pid: i32, trace: &str, inject: Option<&str>, log: PathBuf) -> Result<Self> {
        Self::start(&[], pid, trace, inject, log)
    }

    /// The same, but for the programs that are executed from now on: what is injected is for `pid` alone, and not for what
    /// mends a file system for it.
    pub fn attach_to_itself(pid: i32, trace: &str, inject: &str, log: PathBuf) -> Result<Self> {
        Self::start(&["-b", "execve"], pid, trace, Some(inject), log)
    }

    fn start(
        options: &[&str],
        pid: i32,
        trace: &str,
        inject: Option<&str>,
        log: PathBuf,
    ) -> Result<Self> {
        let mut command = Command::new("strace");
        command
            .args(options)
            .args([
                "-f",
                "-p",
                &pid.to_string(),
                "-e",
                &format!("trace={trace}"),
            ])
            .arg("-o")
            .arg(&log);
        if let Some(inject) = inject {
            command.arg("-e").arg(format!("inject={inject}"));
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("start strace (make deps installs it)")?;
        let mut told = BufReader::new(child.stderr.take().context("strace's messages")?);
        let mut line = String::new();
        // It says so once it has all threads.
        while told.read_line(&mut line)? > 0 {
            if line.contains(" attached") {
                // What it says later is not wanted, but must not fill the pipe.
                std::thread::spawn(move || std::io::copy(&mut told, &mut std::io::sink()));
                return Ok(Self { child, log });
            }
            line.clear();
        }
        bail!("strace did not attach to {pid}")
    }

    /// Lets go, and gives what it wrote: a line for each call.
    pub fn detach(mut self) -> Result<Vec<String>> {
        self.end();
        let text = fs::read_to_string(&self.log)?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    fn end(&mut self) {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        let _ = kill(pid, Signal::SIGINT);
        let _ = self.child.wait();
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.end();
        }
    }
}

/// Whether a call on this line was made to fail.
pub fn was_injected(line: &str) -> bool {
    line.contains("(INJECTED)")
}
