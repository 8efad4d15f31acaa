//! The `lodge` command against a fake daemon: what it prints where, and its exit codes.

mod fake;

use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};
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

#[test]
fn output_and_exit_code_are_the_commands() {
    let out = Lodge::new().output(&["run", "printf 'a\\0b\\377'; echo oops >&2; exit 7"]);
    assert_eq!(
        (&out.stdout[..], text(&out.stderr)),
        (&b"a\0b\xff"[..], "oops\n")
    );
    assert_eq!(out.status.code(), Some(7));
}

#[test]
fn one_argument_is_a_script_and_several_are_a_program() {
    let lodge = Lodge::new();
    assert_eq!(
        text(&lodge.output(&["run", "echo a | tr a b"]).stdout),
        "b\n"
    );
    let out = lodge.output(&["run", "printf", "%s|", "a b", "$HOME", "-s", "--json", ""]);
    assert_eq!(text(&out.stdout), "a b|$HOME|-s|--json||");
    assert_eq!(
        text(&lodge.output(&["run", "-w", "/", "--", "pwd"]).stdout),
        "/\n"
    );
}

/// The command's standard input stays open and silent for the whole test.
#[test]
fn case_c2_a_silent_stdin_does_not_hold_it_up() {
    let lodge = Lodge::new();
    for args in [&["run", "echo", "hi"][..], &["run", "-i", "echo", "hi"]] {
        let mut command = lodge.command(args);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let out = child.wait_with_output().unwrap();
        assert_eq!(
            (text(&out.stdout), out.status.code()),
            ("hi\n", Some(0)),
            "{args:?}"
        );
        drop(stdin);
    }
}

#[test]
fn stdin_is_passed_only_if_asked_for() {
    let lodge = Lodge::new();
    for (args, expected) in [(&["run", "cat"][..], ""), (&["run", "-i", "cat"], "input")] {
        let mut command = lodge.command(args);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Without -i nobody reads it, and the write may find the pipe closed.
        let _ = child.stdin.take().unwrap().write_all(b"input");
        let out = child.wait_with_output().unwrap();
        assert_eq!(text(&out.stdout), expected, "{args:?}");
    }
}

#[test]
fn variables_and_secrets_reach_the_command() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "A=file\nB=file\n").unwrap();
    let path = file.path().to_str().unwrap();
    let lodge = Lodge::new();
    let args = [
        "run",
        "--env-file",
        path,
        "-e",
        "B=b",
        "-e",
        "C",
        "--secret",
        "D",
        "echo $A $B $C $D",
    ];
    let out = lodge
        .command(&args)
        .env("C", "c")
        .env("D", "secret")
        .output()
        .unwrap();
    assert_eq!(text(&out.stdout), "file b c secret\n");
    let out = lodge.output(&["run", "--secret", "TOKEN=value", "true"]);
    assert_eq!(out.status.code(), Some(125));
    assert!(text(&out.stderr).contains("\nhint: ") && !text(&out.stderr).contains("value"));
}

#[test]
fn json_is_one_object_with_output_and_result() {
    let lodge = Lodge::new();
    let object = lodge.json(&["run", "--json", "echo out; echo err >&2; exit 3"]);
    for (key, value) in [
        ("stdout", json!("out\n")),
        ("stderr", json!("err\n")),
        ("exit_code", json!(3)),
        ("end_reason", json!("EXITED")),
        ("stdout_bytes", json!(4)),
        ("stdout_dropped_bytes", json!(0)),
        ("signal", json!(null)),
        ("run_id", json!(fake::ID)),
    ] {
        assert_eq!(object[key], value, "{key}");
    }
    assert!(object.get("stdout_head_base64").is_none());
    let object = lodge.json(&["run", "--json", "printf '\\377'"]);
    assert_eq!(
        (&object["stdout"], &object["stdout_replacements"]),
        (&json!("\u{fffd}"), &json!(1))
    );
    assert_eq!(object["stdout_head_base64"], "/w==");
    let object = lodge.json(&["run", "--json", "--max-output", "10", "seq 100"]);
    assert_eq!(object["stdout"], "1\n2\n[… 282 bytes dropped …]\n99\n100\n");
}

/// What cannot be kept is refused before anything runs: who is told of a failure runs it again.
#[test]
fn more_output_than_can_be_kept_is_refused_before_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    let script = format!("touch {}", ran.display());
    let lodge = Lodge::new();
    let out = lodge.output(&["run", "--json", "--max-output", "9MiB", &script]);
    assert_eq!(out.status.code(), Some(125));
    assert!(
        text(&out.stdout).contains("above 8 MiB"),
        "{}",
        text(&out.stdout)
    );
    assert!(!ran.exists());
}

#[test]
fn a_failure_of_lodge_is_125_with_a_hint_and_an_object_in_json() {
    let lodge = Lodge::new();
    let out = lodge.output(&["run", "fake:refuse"]);
    assert_eq!(out.status.code(), Some(125));
    assert_eq!(
        text(&out.stderr),
        "lodge: that is too much\nhint: ask for less\n"
    );
    let out = lodge.output(&["run", "--json", "fake:refuse"]);
    assert_eq!(out.status.code(), Some(125));
    let object: Value = serde_json::from_slice(&out.stdout).unwrap();
    let expected = json!({
        "message": "that is too much", "hint": "ask for less",
        "code": "ResourceExhausted", "reason": "TOO_MUCH",
    });
    assert_eq!(object["error"], expected);
}

#[test]
fn a_stream_that_is_cut_is_125_and_keeps_what_came() {
    let out = Lodge::new().output(&["run", "-s", "here", "fake:cut"]);
    assert_eq!((text(&out.stdout), out.status.code()), ("part", Some(125)));
    let back = format!(
        "`lodge attach -s here --offset 4 --stderr-offset 0 {}`",
        fake::ID
    );
    let stderr = text(&out.stderr);
    assert!(
        stderr.contains("lost sight of run") && stderr.contains(&back),
        "{stderr}"
    );
}

#[test]
fn usage_and_a_missing_daemon_are_125() {
    for args in [
        &["run"][..],
        &["run", "-t", "soon", "true"],
        &["frobnicate"],
        &["run", "--nope", "x"],
    ] {
        let out = lodge(args).output().unwrap();
        assert_eq!(
            (out.status.code(), &out.stdout[..]),
            (Some(125), &b""[..]),
            "{args:?}"
        );
    }
    let mut command = lodge(&["run", "true"]);
    let out = command
        .env("LODGE_ENDPOINT", "unix:///nonexistent/lodged.sock")
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(125));
    let stderr = text(&out.stderr);
    assert!(
        stderr.contains("/nonexistent/lodged.sock") && stderr.contains("\nhint: "),
        "{stderr}"
    );
}

#[test]
fn a_reader_that_goes_ends_the_run_without_a_word() {
    let lodge = Lodge::new();
    let mut command = lodge.command(&["run", "yes"]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command runs");
    let mut first = [0; 2];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!((&first, text(&out.stderr)), (b"y\n", ""));
    assert_eq!(out.status.code(), Some(141));
}

#[test]
fn an_interrupt_ends_the_run_and_gives_its_exit_code() {
    let lodge = Lodge::new();
    for name in ["INT", "TERM"] {
        let mut command = lodge.command(&["run", "echo started; exec sleep 60"]);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0; 8];
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut line)
            .unwrap();
        signal(&child, name);
        let out = child.wait_with_output().unwrap();
        // The fake kills at once.
        assert_eq!(out.status.code(), Some(137), "{}", text(&out.stderr));
        assert!(text(&out.stderr).starts_with("lodge: ending the run"));
    }
}

#[test]
fn a_second_interrupt_leaves_at_once() {
    let lodge = Lodge::new();
    let mut command = lodge.command(&["run", "fake:hang"]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = child.stderr.take().unwrap();
    // Before it listens a signal would end it as any other program: it says when it has heard the first one.
    let mut said = [0; 6];
    loop {
        signal(&child, "INT");
        if stderr.read_exact(&mut said).is_ok() {
            break;
        }
        child = command.stderr(Stdio::piped()).spawn().unwrap();
        stderr = child.stderr.take().unwrap();
    }
    signal(&child, "INT");
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

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

/// Every option stands under the heading that it belongs to, and those without one under `Options`.
#[test]
fn help_groups_options_by_what_they_are_about() {
    for subcommand in ["create", "update"] {
        let out = lodge(&[subcommand, "--help"]).output().unwrap();
        let mut heading = String::new();
        let mut found = Vec::new();
        for line in text(&out.stdout).lines() {
            if let Some(name) = line.strip_suffix(':').filter(|name| !name.starts_with(' ')) {
                heading = name.to_owned();
            }
            for option in [
                "--json",
                "--endpoint",
                "--label",
                "--memory",
                "--allow-degraded",
                "--stop-after",
            ] {
                let words = line.trim_start().split([' ', ',']);
                if line.trim_start().starts_with('-')
                    && words.into_iter().any(|word| word == option)
                {
                    found.push((option, heading.split(' ').next().unwrap().to_owned()));
                }
            }
        }
        found.sort_unstable();
        let found: Vec<_> = found
            .iter()
            .map(|(option, heading)| (*option, heading.as_str()))
            .collect();
        let expected = [
            ("--allow-degraded", "Limits"),
            ("--endpoint", "Options"),
            ("--json", "Options"),
            ("--label", "Options"),
            ("--memory", "Limits"),
            ("--stop-after", "When"),
        ];
        assert_eq!(found, expected, "{subcommand}");
    }
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

#[test]
fn each_shell_gets_its_completions() {
    for shell in ["bash", "zsh", "fish"] {
        let out = lodge(&["completion", shell]).output().unwrap();
        assert!(text(&out.stdout).contains("lodge"), "{shell}");
    }
    assert_eq!(
        lodge(&["completion", "cmd"])
            .output()
            .unwrap()
            .status
            .code(),
        Some(125)
    );
}
