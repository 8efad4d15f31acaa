//! The `lodge` command against a fake daemon: what it prints where, and its exit codes.

#[path = "../fake/mod.rs"]
mod fake;

mod disks; // disks and images
mod running; // `lodge run`
mod sandboxes; // what is done with sandboxes
mod words; // usage, help, completions

use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tokio::runtime::Runtime;

/// A fake daemon, and the command pointed at it.
struct Lodge {
    _runtime: Runtime,
    daemon: fake::Daemon,
}

impl Lodge {
    fn new() -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let daemon = runtime.block_on(fake::Daemon::start());
        Self {
            _runtime: runtime,
            daemon,
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = lodge(args);
        command.env("LODGE_ENDPOINT", self.daemon.endpoint());
        command
    }

    fn output(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the command runs")
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_slice(&self.output(args).stdout).expect("an object")
    }
}

fn lodge(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lodge"));
    command
        .args(args)
        .env_remove("LODGE_SANDBOX")
        .stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill")
        .args(["-s", name, &child.id().to_string()])
        .status();
    assert!(status.expect("kill runs").success());
}
