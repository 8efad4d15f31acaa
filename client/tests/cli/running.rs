//! What `lodge run` prints where, and its exit codes.

use std::io::{Read as _, Write as _};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::{Lodge, fake, signal, text};

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
