//! Subcommands that are about sandboxes.

use serde_json::{Value, json};

use crate::{Lodge, fake, text};

#[test]
fn attack_e41_names_from_a_sandbox_cannot_command_the_terminal() {
    let out = Lodge::new().output(&["ps"]);
    assert!(
        text(&out.stdout).contains("evil \\u{1b}[2J\\nname"),
        "{}",
        text(&out.stdout)
    );
    assert!(!out.stdout.contains(&0x1b));
}

#[test]
fn lists_are_tables_or_json() {
    let lodge = Lodge::new();
    let table = lodge.output(&["ls"]).stdout;
    let first: Vec<_> = text(&table)
        .lines()
        .map(|line| line.split(' ').next().unwrap())
        .collect();
    assert_eq!(first, ["NAME", "first", "second"]);
    let array = lodge.json(&["ls", "--json"]);
    assert_eq!(
        (&array[0]["name"], &array[1]["name"]),
        (&json!("first"), &json!("second"))
    );
    assert_eq!(lodge.json(&["inspect", "--json", "x"])["state"], "running");
}

#[test]
fn pause_resume_and_start_print_the_names_that_worked_and_tell_the_others() {
    let lodge = Lodge::new();
    for verb in ["resume", "start"] {
        let out = lodge.output(&[verb, "a", "b"]);
        assert_eq!((text(&out.stdout), out.status.code()), ("a\nb\n", Some(0)));
    }
    let out = lodge.output(&["pause", "a", "stopped", "b"]);
    assert_eq!(
        (text(&out.stdout), out.status.code()),
        ("a\nb\n", Some(125))
    );
    assert_eq!(text(&out.stderr), "lodge: SANDBOX_NOT_RUNNING\n");
}

#[test]
fn update_sends_what_is_said_and_refuses_to_do_nothing() {
    let lodge = Lodge::new();
    let flags = "--memory 1GiB --cpus 1.5 --pids 64 --freeze-after 10m --delete-after never \
        --label a=b --remove-label c";
    let args: Vec<_> = ["update", "x"]
        .into_iter()
        .chain(flags.split_whitespace())
        .collect();
    let out = lodge.output(&args);
    assert_eq!(
        (text(&out.stdout), out.status.code()),
        ("fake\n", Some(0)),
        "{}",
        text(&out.stderr)
    );
    let asked = lodge.daemon.asked().update;
    let (limits, idle) = (asked.limits.unwrap(), asked.idle.unwrap());
    assert_eq!(
        (
            limits.memory_bytes,
            limits.cpu_millis,
            limits.pids,
            limits.shm_bytes
        ),
        (Some(1 << 30), Some(1500), Some(64), None)
    );
    let seconds = |after: Option<prost_types::Duration>| after.map(|after| after.seconds);
    assert_eq!(
        [idle.freeze_after, idle.stop_after, idle.delete_after].map(seconds),
        [Some(600), None, Some(0)]
    );
    assert_eq!(
        (asked.set_labels["a"].as_str(), &asked.remove_labels[..]),
        ("b", &["c".to_owned()][..])
    );
    let out = lodge.output(&["update", "x"]);
    assert_eq!(out.status.code(), Some(125));
    assert!(text(&out.stderr).starts_with("lodge: nothing to change\nhint: "));
    let object = lodge.json(&["update", "x", "--freeze-after", "2h", "--json"]);
    assert_eq!(object["idle"]["freeze_after_seconds"], 7200);
    assert_eq!(object["idle"]["stop_after_seconds"], json!(null));
}

#[test]
fn create_and_run_say_idle_policy_and_resume_mode() {
    let lodge = Lodge::new();
    let out = lodge.output(&[
        "create",
        "x",
        "--stop-after",
        "1h",
        "--freeze-after",
        "never",
    ]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let idle = lodge.daemon.asked().acquire.idle.unwrap();
    assert_eq!(
        (
            idle.freeze_after.unwrap().seconds,
            idle.stop_after.unwrap().seconds,
            idle.delete_after
        ),
        (0, 3600, None)
    );
    let out = lodge.output(&["run", "-s", "frozen", "--resume", "error", "true"]);
    assert_eq!(
        (out.status.code(), text(&out.stderr)),
        (Some(125), "lodge: SANDBOX_IS_FROZEN\n")
    );
    // An id is not acquired first: the run itself says it.
    let id = format!("id:{}", fake::ID);
    let out = lodge.output(&["run", "-s", &id, "--resume", "error", "true"]);
    assert_eq!(out.status.code(), Some(0));
    assert_eq!(lodge.daemon.asked().run.resume, 2);
}

#[test]
fn stats_show_figures_and_a_dash_for_none() {
    let lodge = Lodge::new();
    let out = lodge.output(&["stats", "a", "missing", "stopped"]);
    assert_eq!(
        (out.status.code(), text(&out.stderr)),
        (Some(125), "lodge: SANDBOX_NOT_FOUND\n")
    );
    let rows: Vec<Vec<_>> = text(&out.stdout)
        .lines()
        .skip(1)
        .map(|line| {
            line.split("  ")
                .map(str::trim)
                .filter(|cell| !cell.is_empty())
                .collect()
        })
        .collect();
    let expected = [
        vec![
            "a",
            "running",
            "3.0 MiB",
            "-",
            "2.0 GiB",
            "1m 1s",
            "3 of 2048",
            "1",
            "10.0 GiB of 10.0 GiB",
            "12",
            "0",
            "7",
            "0 B",
        ],
        vec![
            "stopped", "stopped", "-", "-", "-", "-", "-", "-", "-", "-", "0", "0", "2.0 KiB",
        ],
    ];
    assert_eq!(rows, expected);
    let array = lodge.json(&["stats", "--json"]);
    assert_eq!(
        (&array[1]["name"], &array[1]["memory_bytes"]),
        (&json!("second"), &json!(3 << 20))
    );
    assert_eq!(array[1]["uptime_ms"], json!(null));
}

#[test]
fn ls_passes_its_filter_on_and_knows_the_states() {
    let lodge = Lodge::new();
    let out = lodge.output(&[
        "ls", "--label", "a=b", "--state", "frozen", "--state", "stopped",
    ]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let asked = lodge.daemon.asked().list;
    assert_eq!(
        (asked.labels["a"].as_str(), &asked.states[..]),
        ("b", &[3, 4][..])
    );
    let out = lodge.output(&["ls", "--state", "asleep"]);
    assert_eq!(out.status.code(), Some(125));
    assert!(text(&out.stderr).contains("frozen"));
}

/// The fake breaks off once, and the one that is watched goes in the end.
#[test]
fn watch_prints_a_line_for_each_change_and_ends_with_its_sandbox() {
    let lodge = Lodge::new();
    let out = lodge.output(&["watch", "first"]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let lines: Vec<_> = text(&out.stdout)
        .lines()
        .map(|line| line.split_once("  ").expect("a time first").1)
        .collect();
    assert_eq!(
        lines[..3],
        ["first  running", "second  stopped", "first  frozen"]
    );
    assert_eq!(lines.last(), Some(&"first  deleted"));
    // By its id once that is known: another one may have the name then.
    let again = &lodge.daemon.asked().watches[1];
    assert_eq!(fake_id(again.sandbox.as_ref()), Some(fake::ID));
    let lodge = Lodge::new();
    let out = lodge.output(&["watch", "first", "--json"]);
    let events: Vec<Value> = text(&out.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("an object a line"))
        .collect();
    assert_eq!(
        (&events[0]["event"], &events[0]["sandbox"]["name"]),
        (&json!("changed"), &json!("first"))
    );
    assert_eq!(events[2], json!({ "event": "synced" }));
    let last = json!({ "event": "deleted", "id": fake::ID, "name": "first" });
    assert_eq!(events.last(), Some(&last));
}

fn fake_id(sandbox: Option<&lodge_proto::v1::SandboxRef>) -> Option<&str> {
    match sandbox?.r#ref.as_ref()? {
        lodge_proto::v1::sandbox_ref::Ref::Id(id) => Some(id),
        lodge_proto::v1::sandbox_ref::Ref::Name(_) => None,
    }
}
