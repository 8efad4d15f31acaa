//! Subcommands that are about disks and images.

use serde_json::{Value, json};

use crate::{Lodge, text};

#[test]
fn a_full_disk_is_said_on_a_line_of_its_own_with_its_figures() {
    let lodge = Lodge::new();
    let out = lodge.output(&["run", "fake:disk-full"]);
    assert_eq!(
        (out.status.code(), text(&out.stdout), text(&out.stderr)),
        (
            Some(1),
            "",
            "lodge: the sandbox's disk is full (10.0 GiB of 10.0 GiB)\n\
             lodge: the sandbox's /dev/shm is full\n"
        )
    );
    let out = lodge.output(&["run", "--json", "fake:disk-full"]);
    let object: Value = serde_json::from_slice(&out.stdout).expect("an object");
    assert_eq!(object["disk_full"], json!(["ROOT", "SHM"]));
    assert_eq!(text(&out.stderr), "");
    assert_eq!(
        lodge.json(&["run", "--json", "true"])["disk_full"],
        json!([])
    );
}

#[test]
fn df_shows_the_host_and_every_sandbox() {
    let lodge = Lodge::new();
    let out = lodge.output(&["df"]);
    let lines: Vec<&str> = text(&out.stdout).lines().collect();
    assert_eq!(
        lines,
        [
            "driver     fake",
            "path       /pool\\u{1b}[2J",
            "size       100.0 GiB",
            "used       40.0 GiB",
            "host free  60.0 GiB",
            "reserve    1.0 GiB",
            "images     300.0 MiB",
            "run logs   2.0 KiB",
            "removing   2 deleted sandboxes",
            "cannot     grow: there is no pool",
            "",
            "NAME    STATE    USED     LIMIT     FILES  MAX FILES",
            "first   running  3.0 MiB  10.0 GiB  5      4096",
            "second  stopped  -        -         -      -",
        ]
    );
    let object = lodge.json(&["df", "--json"]);
    assert_eq!(object["host"]["reserve_bytes"], json!(1 << 30));
    assert_eq!(object["abilities"][0]["supported"], json!(false));
    assert_eq!(object["sandboxes"][0]["used_bytes"], json!(3 << 20));
    assert_eq!(object["sandboxes"][1]["used_bytes"], json!(null));
    assert_eq!(object["sandboxes"][1]["name"], json!("second"));
}

#[test]
fn a_pool_grows_and_does_not_shrink() {
    let lodge = Lodge::new();
    let out = lodge.output(&["pool", "grow", "200GiB"]);
    assert_eq!(
        (out.status.code(), text(&out.stdout)),
        (Some(0), "200.0 GiB, 40.0 GiB of it used\n")
    );
    let object = lodge.json(&["pool", "grow", "--json", "200GiB"]);
    assert_eq!(object["size_bytes"], json!(200_u64 << 30));
    let out = lodge.output(&["pool", "grow", "1GiB"]);
    assert_eq!(
        (out.status.code(), text(&out.stdout), text(&out.stderr)),
        (Some(125), "", "lodge: POOL_TOO_SMALL\n")
    );
    let out = lodge.output(&["pool", "grow", "much"]);
    assert_eq!(out.status.code(), Some(125));
}

#[test]
fn a_directory_is_packed_and_imported() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), vec![b'x'; 5 << 20]).unwrap();
    let lodge = Lodge::new();
    let path = dir.path().to_str().unwrap();
    let out = lodge.output(&["image", "import", path, "--name", "mine"]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    // In a pipe there is no progress.
    assert_eq!(text(&out.stderr), "");
    let out = lodge.output(&["image", "import", "/nonexistent/archive", "--name", "mine"]);
    assert_eq!(out.status.code(), Some(125));
}

#[test]
fn a_pruning_tells_what_went_and_what_would_go() {
    let lodge = Lodge::new();
    let out = lodge.output(&["image", "prune", "--dry-run"]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let digest = format!("sha256:{}", "0".repeat(64));
    let row = text(&out.stdout).lines().nth(1).unwrap().to_owned();
    let row: Vec<_> = row.split_whitespace().collect();
    assert_eq!(row, ["old,older", &digest, "3.0", "MiB"]);
    assert_eq!(
        text(&out.stderr),
        "lodge: 1 image(s) would go, and 2.0 MiB would be free again\n"
    );
    let out = lodge.output(&["image", "prune", "--dry-run", "--json"]);
    let told: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(told["freed_bytes"], 2 << 20);
    assert_eq!(told["images"][0]["names"][1], "older");
    let out = lodge.output(&["image", "prune"]);
    assert_eq!(out.status.code(), Some(0));
    assert_eq!(text(&out.stdout), "");
    assert_eq!(text(&out.stderr), "lodge: every image is in use\n");
}
