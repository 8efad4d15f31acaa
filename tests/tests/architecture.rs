//! The shape of the code: which crate may know which, where unsafe code may be, and where wire types end. Needs
//! neither root nor a daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use lodge_tests::redteam;

/// Which of our own crates a crate may depend on, all that may be and no more.
const MAY_KNOW: &[(&str, &[&str])] = &[
    ("proto", &[]),
    ("daemon/kernel", &[]),
    ("daemon/holder", &["lodge-kernel", "lodge-proto"]),
    ("daemon", &["lodge-holder", "lodge-kernel", "lodge-proto"]),
    ("client", &["lodge-proto"]),
    ("tests", &["lodge-client", "lodge-proto"]),
];

/// Crates of others that a layer must not have: no runtime and no wire in the kernel's or PID 1's code.
const MUST_NOT_KNOW: &[(&str, &[&str])] = &[
    (
        "daemon/kernel",
        &["tokio", "prost", "tonic", "serde_json", "tracing"],
    ),
    (
        "daemon/holder",
        &["tokio", "tonic", "tracing", "serde_json"],
    ),
    ("client", &["nix", "libc", "rustix", "cgroups-rs"]),
    ("proto", &["nix", "tokio"]),
];

/// What lies at the top of the tree, beside dot files: a new concern goes into the folder that it belongs to.
const TOP: &[&str] = &[
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "client",
    "clippy.toml",
    "daemon",
    "deny.toml",
    "images",
    "proto",
    "rustfmt.toml",
    "tests",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn manifest(dir: &str) -> Result<toml::Table> {
    let path = root().join(dir).join("Cargo.toml");
    Ok(fs::read_to_string(&path)
        .with_context(|| path.display().to_string())?
        .parse()?)
}

/// Names under `[dependencies]` and `[build-dependencies]`, and those of each target.
fn dependencies(manifest: &toml::Table) -> BTreeSet<String> {
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let per_target = targets
        .into_iter()
        .flat_map(|t| t.values())
        .filter_map(toml::Value::as_table);
    let tables = std::iter::once(manifest).chain(per_target);
    let kinds = ["dependencies", "build-dependencies"];
    let found = tables.flat_map(|t| kinds.into_iter().filter_map(|k| t.get(k)?.as_table()));
    found.flat_map(|t| t.keys().cloned()).collect()
}

/// Every Rust file below a directory of the project, by its path from the root.
fn sources(dir: &str) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    let mut todo = vec![root().join(dir)];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir)
            .with_context(|| dir.display().to_string())?
            .flatten()
        {
            let path = entry.path();
            if path.is_dir() {
                if !path.ends_with("target") {
                    todo.push(path);
                }
            } else if path.extension().is_some_and(|e| e == "rs") {
                let name = path.strip_prefix(root())?.to_string_lossy().into_owned();
                found.insert(name, fs::read_to_string(&path)?);
            }
        }
    }
    Ok(found)
}

/// Code lines of a file: comments do not count.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text
        .lines()
        .enumerate()
        .map(|(n, l)| (n + 1, l.split("//").next().unwrap_or("")));
    lines.filter(|(_, l)| !l.trim().is_empty())
}

/// Our crates depend on each other in one direction only: `client → proto`, `daemon → holder, kernel, proto`,
/// `holder → kernel, proto`.
#[test]
fn crates_depend_in_one_direction() -> Result<()> {
    let members = manifest(".")?["workspace"]["members"]
        .as_array()
        .context("members")?
        .len();
    ensure!(
        members == MAY_KNOW.len(),
        "a member of the workspace is not in the table"
    );
    for (dir, allowed) in MAY_KNOW {
        let all = dependencies(&manifest(dir)?);
        let ours = all.iter().filter(|d| d.starts_with("lodge"));
        for dependency in ours {
            ensure!(
                allowed.contains(&dependency.as_str()),
                "{dir} depends on {dependency}"
            );
        }
    }
    Ok(())
}

/// The lower layers have no runtime and no wire, and the client builds where there is no Linux.
#[test]
fn the_top_level_names_are_fixed() -> Result<()> {
    for entry in fs::read_dir(root())? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        // Builds go to target; it is no part of the tree.
        let known = name.starts_with('.') || name == "target" || TOP.contains(&name.as_str());
        ensure!(known, "{name} is new at the top level");
    }
    Ok(())
}

#[test]
fn layers_do_not_know_what_is_above() -> Result<()> {
    for (dir, forbidden) in MUST_NOT_KNOW {
        let all = dependencies(&manifest(dir)?);
        for dependency in *forbidden {
            ensure!(!all.contains(*dependency), "{dir} depends on {dependency}");
        }
    }
    Ok(())
}

/// Nothing of the daemon below `api/` names a type of the public wire.
#[test]
fn wire_types_end_at_the_api() -> Result<()> {
    for (file, text) in sources("daemon/src")? {
        if file.starts_with("daemon/src/api/") {
            continue;
        }
        for (line, content) in code(&text) {
            ensure!(
                !content.contains("lodge_proto::v1"),
                "{file}:{line} names the public wire"
            );
            ensure!(
                !content.contains("tonic::Status"),
                "{file}:{line} names a wire status"
            );
        }
    }
    Ok(())
}

/// Modules of the daemon that the arrow `api → domain → store, storage → kernel` lets know nothing of these.
const BELOW: &[(&str, &[&str])] = &[
    (
        "daemon/src/store/",
        &[
            "crate::api",
            "crate::service",
            "crate::exec",
            "crate::sandbox::registry",
        ],
    ),
    (
        "daemon/src/storage/",
        &[
            "crate::api",
            "crate::service",
            "crate::exec",
            "crate::image",
        ],
    ),
    (
        "daemon/src/holder/",
        &[
            "crate::api",
            "crate::service",
            "crate::exec",
            "crate::image",
            "crate::store",
        ],
    ),
    ("daemon/src/exec/", &["crate::api", "crate::service"]),
    ("daemon/src/sandbox/", &["crate::api", "crate::service"]),
    (
        "daemon/src/image/",
        &["crate::api", "crate::service", "crate::exec"],
    ),
];

/// Within the daemon too, a lower layer does not name a higher one.
#[test]
fn modules_of_the_daemon_point_downwards() -> Result<()> {
    for (file, text) in sources("daemon/src")? {
        let rules = BELOW.iter().filter(|(dir, _)| file.starts_with(dir));
        for forbidden in rules.flat_map(|(_, words)| words.iter()) {
            for (line, content) in code(&text) {
                ensure!(
                    !content.contains(forbidden),
                    "{file}:{line} names {forbidden}"
                );
            }
        }
    }
    Ok(())
}

/// Unsafe code is in one directory, and there each block says why it is sound.
#[test]
fn unsafe_code_is_in_one_directory() -> Result<()> {
    for dir in ["proto", "daemon", "client", "tests"] {
        for (file, text) in sources(dir)? {
            let in_sys = file.starts_with("daemon/kernel/src/sys/");
            let this = file == "tests/tests/architecture.rs";
            for (line, content) in code(&text).filter(|_| !in_sys && !this) {
                let forms = [
                    "unsafe {",
                    "unsafe fn",
                    "unsafe impl",
                    "unsafe extern",
                    "unsafe(",
                ];
                let word =
                    |at: usize| !content[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
                let found = forms.iter().find(|f| content.find(*f).is_some_and(word));
                ensure!(found.is_none(), "{file}:{line} has unsafe code");
            }
        }
    }
    Ok(())
}

/// No test needs anything outside the project, and nothing names the machine that it was written on.
#[test]
fn nothing_outside_the_clone_is_needed() -> Result<()> {
    for dir in ["proto", "daemon", "client", "tests"] {
        for (file, text) in sources(dir)?
            .iter()
            .filter(|(f, _)| *f != "tests/tests/architecture.rs")
        {
            for forbidden in ["../shared", "/work/main", "CONTRACT.md"] {
                ensure!(!text.contains(forbidden), "{file} names {forbidden}");
            }
        }
    }
    Ok(())
}

/// Every row of the catalogues that this version must hold has its test.
const ROWS: &[&str] = &[
    "case_a1_", "case_a2_", "case_a3_", "case_a4_", "case_a5_", "case_a6_", "case_a7_", "case_a8_",
    "case_b1_", "case_b2_", "case_b3_", "case_b4_", "case_b5_", "case_b6_", "case_c1_", "case_c2_",
    "case_c3_", "case_c4_", "case_d1_", "case_d2_", "case_d3_", "case_e1_", "case_e2_", "case_e3_",
    "case_e4_", "case_e5_", "case_e6_", "case_e7_", "case_e8_", "case_f1_", "case_f2_", "case_f3_",
    "case_f4_", "case_f5_", "case_f6_", "case_h1_", "case_h2_", "case_h3_", "case_h4_", "case_h5_",
    "case_h6_", "case_j1_", "case_j2_", "case_j3_", "case_j4_", "case_k1_", "case_k2_", "case_k3_",
    "case_l1_", "case_l2_", "case_l3_", "case_m1_", "case_m3_",
];

/// No row is lost by a rename.
#[test]
fn every_row_has_a_test() -> Result<()> {
    let tests = tests()?;
    for row in ROWS {
        ensure!(
            tests.iter().any(|test| test.starts_with(row)),
            "no test is named {row}…"
        );
    }
    Ok(())
}

/// Each attack of the catalogue is answered by a test or a probe, or says why not; one that no release may be without is answered by a
/// test of `make test`. Tests that a row names exist, and each test of an attack has its row.
#[test]
fn every_attack_is_answered() -> Result<()> {
    let tests = tests()?;
    let mut ids = BTreeSet::new();
    for row in redteam::all() {
        let id = row.id;
        ensure!(ids.insert(id), "{id} is there twice");
        let is_tested = tests.iter().any(|test| row.has_test(test));
        ensure!(
            is_tested || row.probe.is_some() || row.instead.is_some(),
            "nothing answers {id}"
        );
        ensure!(
            is_tested || row.instead.is_some() || !row.is_blocker,
            "{id} has no test in `make test`"
        );
        let controls = row.test_falls_without.iter().map(|(_, test)| *test);
        for named in row.tests.iter().copied().chain(controls) {
            ensure!(tests.contains(named), "{id} names {named}");
        }
    }
    for test in &tests {
        let id = test
            .strip_prefix("attack_")
            .and_then(|rest| rest.split_once('_'));
        let is_attack = id.is_some_and(|(id, _)| id.len() == 3 && id[1..].parse::<u8>().is_ok());
        ensure!(
            !is_attack || redteam::all().any(|row| row.has_test(test)),
            "{test} has no row"
        );
    }
    Ok(())
}

/// Names of all functions in tests.
fn tests() -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for dir in ["tests", "daemon", "client"] {
        for text in sources(dir)?.into_values() {
            let functions = text.split("fn ").skip(1);
            let named = functions.filter_map(|rest| rest.split_once('('));
            names.extend(named.map(|(name, _)| name.to_owned()));
        }
    }
    Ok(names)
}

/// Attack A22: what the kernel may be told for a sandbox is a choice of ours each, and no text of a caller's.
#[test]
fn a_caller_may_set_no_kernel_setting_in_free_form() -> Result<()> {
    const SETTINGS: [&str; 9] = [
        "sysctl",
        "mount",
        "seccomp",
        "capabilit",
        "device",
        "apparmor",
        "selinux",
        "privileged",
        "annotation",
    ];
    let mut fields = 0;
    for entry in fs::read_dir(root().join("proto/lodge/v1"))? {
        for line in fs::read_to_string(entry?.path())?.lines() {
            let line = line.trim();
            if line.starts_with("//") || !line.contains(" = ") || !line.ends_with(';') {
                continue;
            }
            fields += 1;
            ensure!(
                !SETTINGS
                    .iter()
                    .any(|word| line.to_lowercase().contains(word)),
                "{line}"
            );
        }
    }
    ensure!(fields > 100, "only {fields} fields were looked at");
    Ok(())
}

/// Every break in `tests/mutations` still fits the product, and its test exists: `make mutations` would find out late.
#[test]
fn every_mutation_fits_the_product() -> Result<()> {
    let of_package = [
        ("lodge-tests", "tests/tests"),
        ("lodged", "daemon/src"),
        ("lodge-kernel", "daemon/kernel"),
        ("lodge-holder", "daemon/holder"),
        ("lodge-client", "client"),
    ];
    let mut tests = BTreeMap::new();
    for (package, dir) in of_package {
        let text: String = sources(dir)?.into_values().collect();
        tests.insert(package, text);
    }
    let mut count = 0;
    for entry in fs::read_dir(root().join("tests/mutations"))?.flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|e| e != "toml") {
            continue;
        }
        let mutation: toml::Table = fs::read_to_string(&path)?.parse()?;
        let field = |key: &str| {
            mutation
                .get(key)
                .and_then(toml::Value::as_str)
                .context("a text")
        };
        let product = fs::read_to_string(root().join(field("file")?))?;
        let found = product.matches(field("find")?).count();
        ensure!(found == 1, "{} fits {found} times", path.display());
        let test = field("test")?;
        let package = mutation.get("package").and_then(toml::Value::as_str);
        let of_it = tests.get(package.unwrap_or("lodge-tests"));
        ensure!(
            of_it.is_some_and(|text| text.contains(&format!("fn {test}("))),
            "{}: no test {test}",
            path.display()
        );
        count += 1;
    }
    ensure!(count >= 12, "only {count} mutations");
    Ok(())
}
