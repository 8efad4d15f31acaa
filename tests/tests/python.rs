//! A Python client from the .proto files alone: stubs by grpcio-tools, then the session that the README shows.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use lodge_tests::binary;
use lodge_tests::daemon::Daemon;

/// The workspace.
fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests
        .parent()
        .expect("the tests lie in the workspace")
        .to_owned()
}

fn succeed(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("start {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?} ended with {}:\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A virtual environment with the pinned packages, made once per version of the list.
fn python() -> Result<PathBuf> {
    let requirements = root().join("tests/python/requirements.txt");
    let venv = binary::target_dir()?.join("python");
    let python = venv.join("bin/python");
    let stamp = venv.join("requirements.txt");
    let wanted = std::fs::read(&requirements).context("read the requirements")?;
    if std::fs::read(&stamp).ok().as_ref() == Some(&wanted) {
        return Ok(python);
    }
    succeed(
        Command::new("python3")
            .args(["-m", "venv", "--clear"])
            .arg(&venv),
    )?;
    let pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--requirement",
    ];
    succeed(Command::new(&python).args(pip).arg(&requirements))?;
    // Written last: an interrupted installation starts anew.
    std::fs::write(&stamp, wanted).context("note the installed packages")?;
    Ok(python)
}

/// Generates the stubs into `into`.
fn stubs(python: &Path, into: &Path) -> Result<()> {
    let include = root().join("proto");
    let mut command = Command::new(python);
    command.args(["-m", "grpc_tools.protoc"]);
    for (flag, dir) in [
        ("--proto_path", &*include),
        ("--python_out", into),
        ("--grpc_python_out", into),
    ] {
        command.arg(format!("{flag}={}", dir.display()));
    }
    command.args(["exec", "image", "node", "sandbox"].map(|name| format!("lodge/v1/{name}.proto")));
    succeed(&mut command).map(drop)
}

#[tokio::test]
async fn python_generates_stubs_and_makes_a_run_a_stream_and_an_error() -> Result<()> {
    let daemon = Daemon::new().await?;
    let python = python()?;
    let generated = tempfile::tempdir()?;
    stubs(&python, generated.path())?;

    let mut session = Command::new(&python);
    session
        .arg(root().join("tests/python/session.py"))
        .arg(daemon.endpoint());
    session.env("PYTHONPATH", generated.path());
    let printed = tokio::task::spawn_blocking(move || succeed(&mut session)).await??;

    let mut lines: Vec<&str> = printed.lines().collect();
    ensure!(lines.len() == 5, "the session printed:\n{printed}");
    // Which of two streams comes first is not promised.
    lines[1..3].sort_unstable();
    assert_eq!(
        lines,
        [
            "run: b'hello python\\n' 3",
            "stream: STREAM_STDERR 0 b'oops\\n'",
            "stream: STREAM_STDOUT 0 b'hello python\\n'",
            "end: END_REASON_EXITED 0",
            "error: NOT_FOUND lodge SANDBOX_NOT_FOUND",
        ]
    );
    Ok(())
}
