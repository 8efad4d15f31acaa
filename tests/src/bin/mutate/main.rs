//! Breaks the product one line at a time and sees that the test that guards the line turns red.
//!
//! Each file of `tests/mutations/` is one break. The product is copied to a tree of its own under `target/mutations`,
//! so that the checkout is never touched; its builds are kept there, so that each break costs one incremental build.
//! The tests are those of the checkout, pointed at the broken binaries. With names as arguments only those are made.
#![expect(clippy::print_stdout, reason = "a command that prints a table")]

mod mutation; // one break, as its file tells it
mod tree; // the copy of the product that is broken

use std::collections::BTreeSet;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use lodge_tests::binary::BINARIES_DIR_VAR;
use lodge_tests::storage::DRIVER_VAR;

use mutation::Mutation;
use tree::Tree;

/// What `cargo nextest run` exits with if tests were run and some failed.
const TESTS_FAILED: i32 = 100;

fn main() -> Result<ExitCode> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let mutations = Mutation::all(&wanted)?;
    ensure!(!mutations.is_empty(), "no mutation is named so");
    let tree = Tree::copy()?;
    ensure!(tree.build()?, "the product does not build unbroken");
    println!("unbroken: {} tests must be green", mutations.len());
    match run_tests(&tree, &mutations)? {
        Verdict::Green => {}
        Verdict::Red => {
            bail!("a test is red without any break: nothing can be learnt; `make test` says which")
        }
    }
    let mut failed = 0;
    for mutation in &mutations {
        let outcome = attempt(&tree, mutation).unwrap_or_else(|error| Err(format!("{error:#}")));
        let (word, note) = match outcome {
            Ok(()) => ("caught", String::new()),
            Err(why) => ("FAILED", format!(": {why}")),
        };
        failed += usize::from(word == "FAILED");
        println!("{word}  {:<36} {}{note}", mutation.name, mutation.test);
    }
    println!("{} passed, {failed} failed", mutations.len() - failed);
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// What tests said.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Green,
    Red,
}

/// Makes one break; `Ok(Err(why))` if its test does not turn red.
fn attempt(tree: &Tree, mutation: &Mutation) -> Result<Result<(), String>> {
    let _broken = tree.break_file(mutation)?;
    // Of a crate whose own test it is, nextest builds what is needed.
    if mutation.package.is_none() && !tree.build()? {
        return Ok(Err("the broken product does not compile".into()));
    }
    Ok(match run_tests(tree, std::slice::from_ref(mutation))? {
        Verdict::Red => Ok(()),
        Verdict::Green => Err("its test stays green".into()),
    })
}

/// Runs the tests of these mutations: end-to-end ones against the tree's binaries, those of a crate in the tree.
fn run_tests(tree: &Tree, mutations: &[Mutation]) -> Result<Verdict> {
    let kind = |m: &Mutation| (m.package.clone(), m.storage.clone());
    let kinds: BTreeSet<_> = mutations.iter().map(kind).collect();
    for (package, storage) in kinds {
        let of_it = mutations
            .iter()
            .filter(|m| m.package == package && m.storage == storage);
        let names: Vec<String> = of_it
            .map(|m| format!("test(/(^|::){}$/)", m.test))
            .collect();
        let verdict = run_tests_of(
            tree,
            package.as_deref(),
            storage.as_deref(),
            &names.join(" + "),
        )?;
        if verdict == Verdict::Red {
            return Ok(verdict);
        }
    }
    Ok(Verdict::Green)
}

fn run_tests_of(
    tree: &Tree,
    package: Option<&str>,
    storage: Option<&str>,
    tests: &str,
) -> Result<Verdict> {
    let mut command = Command::new("cargo");
    command.env(DRIVER_VAR, storage.unwrap_or_default());
    let tests = match package {
        None => format!("package(lodge-tests) & ({tests})"),
        Some(_) => tests.to_owned(),
    };
    command.args(["nextest", "run", "--cargo-quiet", "-E", &tests]);
    match package {
        // Built as `make test` builds them, so that nothing is compiled twice.
        None => command
            .args(["--workspace"])
            .args(tree::FEATURES)
            .current_dir(tree::root())
            .env(BINARIES_DIR_VAR, tree.binaries()),
        Some(package) => tree.enter(&mut command).args(["--offline", "-p", package]),
    };
    if package == Some("lodged") {
        command.args(tree::FEATURES);
    }
    let output = command.output().context("run cargo nextest")?;
    match output.status.code() {
        Some(0) => Ok(Verdict::Green),
        Some(TESTS_FAILED) => Ok(Verdict::Red),
        _ => bail!(
            "nextest did not run the tests: {}",
            String::from_utf8_lossy(&output.stderr)
        ),
    }
}
