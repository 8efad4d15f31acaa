//! Fault points are in the binaries that `make test` builds, and in no others.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use lodge_tests::binary;

/// The cargo feature.
const FEATURE: &str = "fault-points";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// What a command wrote to both its outputs, and whether it succeeded.
fn told(command: &mut Command) -> Result<(bool, String)> {
    let output = command
        .output()
        .with_context(|| format!("start {command:?}"))?;
    let both = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&both).into_owned();
    Ok((output.status.success(), text))
}

/// The cargo feature by which protections can be switched off; the other one brings it.
const WEAKEN: &str = "weaken";

/// Compiles the file that keeps the feature out of optimised builds, alone.
fn compile_the_guard(flags: &[&str]) -> Result<(bool, String)> {
    let temp = tempfile::tempdir()?;
    let mut rustc = Command::new("rustc");
    rustc
        .args(["--edition=2024", "--crate-type=lib", "--emit=metadata"])
        .args(flags)
        .arg(root().join("daemon/src/fault/only_in_tests.rs"))
        .arg("--out-dir")
        .arg(temp.path());
    told(&mut rustc)
}

/// Nobody gets a daemon with fault points who did not ask for one: the compiler refuses an optimised one, no target that
/// makes or installs one for users asks for them, no crate has them by default, and `make release` looks for them in what
/// it built, by words that the tests' daemon does have.
#[test]
fn release_has_no_fault_points() -> Result<()> {
    let with = format!("--cfg=feature={FEATURE:?}");
    let (compiled, text) = compile_the_guard(&[&with, "-Cdebug-assertions=off"])?;
    ensure!(
        !compiled && text.contains("fault points are for tests"),
        "{text}"
    );
    ensure!(compile_the_guard(&[&with, "-Cdebug-assertions=on"])?.0);
    ensure!(compile_the_guard(&["-Cdebug-assertions=off"])?.0);
    let weak = format!("--cfg=feature={WEAKEN:?}");
    let (compiled, text) = compile_the_guard(&[&weak, "-Cdebug-assertions=off"])?;
    ensure!(
        !compiled && text.contains("protections are switched off in tests"),
        "{text}"
    );

    let metadata = ["metadata", "--no-deps", "--offline", "--format-version=1"];
    let (_, text) = told(Command::new("cargo").args(metadata).current_dir(root()))?;
    let start = text.find("{\"packages\"").context("no metadata")?;
    let mut values = serde_json::Deserializer::from_str(&text[start..]).into_iter();
    let metadata: serde_json::Value = values.next().context("no metadata")??;
    for package in metadata["packages"].as_array().context("packages")? {
        let needs =
            package["dependencies"].to_string() + &package["features"]["default"].to_string();
        ensure!(
            !needs.contains(FEATURE),
            "{} asks for them",
            package["name"]
        );
    }

    for target in ["build", "release", "install", "bench", "demo"] {
        let (planned, text) = told(
            Command::new("make")
                .args(["-n", target])
                .current_dir(root()),
        )?;
        ensure!(
            planned && !text.contains(FEATURE) && !text.contains(WEAKEN),
            "make {target} has them: {text}"
        );
    }

    let makefile = std::fs::read_to_string(root().join("Makefile"))?;
    let mark = makefile
        .lines()
        .find_map(|line| line.strip_prefix("FAULTS_MARK := "));
    let mark = mark.context("the Makefile has no FAULTS_MARK")?;
    let (_, plan) = told(
        Command::new("make")
            .args(["-n", "release"])
            .current_dir(root()),
    )?;
    ensure!(
        plan.contains(mark),
        "make release does not look for {mark:?}"
    );
    let ours = std::fs::read(binary::path("lodged")?)?;
    let found = ours
        .windows(mark.len())
        .any(|bytes| bytes == mark.as_bytes());
    ensure!(
        found,
        "the tests' daemon has no fault points: cargo build --workspace --bins --features lodged/{FEATURE}"
    );
    Ok(())
}

/// A protection that does not exist cannot be switched off: no control is red for a mistyped name.
#[test]
fn unknown_protections_are_refused() -> Result<()> {
    let mut lodged = Command::new(binary::path("lodged")?);
    let asked = lodged
        .args(["--config", "/dev/null"])
        .env("LODGE_TEST_WEAKEN", "masks,mask");
    let (started, text) = told(asked)?;
    ensure!(
        !started && text.contains("there is no protection \"mask\""),
        "{text}"
    );
    Ok(())
}

/// A fault that does not exist is an error, so that no test is green for a mistyped name.
#[test]
fn unknown_faults_are_refused() -> Result<()> {
    for (faults, why) in [
        ("record.renamed=kill", "there is no fault point"),
        (
            "record.rename=explode",
            "none of kill, error, full, panic, delay",
        ),
        ("record.rename", "not name=action"),
    ] {
        let mut lodged = Command::new(binary::path("lodged")?);
        let (started, text) = told(
            lodged
                .args(["--config", "/dev/null"])
                .env("LODGE_FAULTS", faults),
        )?;
        ensure!(!started && text.contains(why), "{faults}: {text}");
    }
    Ok(())
}
