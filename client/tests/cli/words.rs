//! Usage, help, and completions.

use crate::{lodge, text};

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
