//! The beginning of a command, as a line for lists: values of secrets replaced, then made one line, then cut.

use std::sync::Arc;

use super::mask::Patterns;
use super::spec::Command;

/// Bytes of a preview.
const PREVIEW_MAX_BYTES: usize = 256;
/// Bytes of a command that are looked at: many times a preview, since a long secret becomes a short name.
const LOOKED_AT_MAX_BYTES: usize = 16 << 10;

/// The preview of a command whose call had the secrets of `patterns`.
pub(super) fn preview(command: &Command, patterns: Option<&Arc<Patterns>>) -> String {
    let (text, cut) = beginning(command);
    let masked = match patterns {
        None => text,
        // A value that begins where the text was cut off is not known by its end.
        Some(patterns) if cut => patterns.in_cut_text(&text),
        Some(patterns) => patterns.in_text(&text),
    };
    let mut line = String::with_capacity(PREVIEW_MAX_BYTES);
    for c in masked.trim().chars() {
        let shown = if c.is_control() { ' ' } else { c };
        if line.len() + shown.len_utf8() > PREVIEW_MAX_BYTES {
            break;
        }
        line.push(shown);
    }
    line
}

/// The beginning of a command's text, and whether that is not all of it.
fn beginning(command: &Command) -> (String, bool) {
    let mut text = String::new();
    let parts: &mut dyn Iterator<Item = &str> = match command {
        Command::Shell(script) => &mut std::iter::once(script.as_str()),
        Command::Argv(args) => &mut args.iter().map(String::as_str),
    };
    for (place, part) in parts.enumerate() {
        if place > 0 {
            text.push(' ');
        }
        let room = LOOKED_AT_MAX_BYTES.saturating_sub(text.len());
        if part.len() > room {
            let end = (0..=room).rev().find(|end| part.is_char_boundary(*end));
            text.push_str(&part[..end.unwrap_or(0)]);
            return (text, true);
        }
        text.push_str(part);
    }
    (text, false)
}

#[cfg(test)]
mod tests {
    use zeroize::Zeroizing;

    use super::super::environment::Secret;
    use super::*;

    fn patterns(value: &str) -> Arc<Patterns> {
        let secret = Secret {
            name: "S".to_owned(),
            value: Zeroizing::new(value.to_owned()),
        };
        Arc::new(Patterns::new(&[secret]).expect("built"))
    }

    fn shell(text: &str) -> Command {
        Command::Shell(text.to_owned())
    }

    #[test]
    fn it_is_one_line_of_bounded_length() {
        assert_eq!(preview(&shell(" a\n\tb\u{1b}[0m\r\n"), None), "a  b [0m");
        let argv = Command::Argv(vec!["ls".to_owned(), "-l a".to_owned(), String::new()]);
        assert_eq!(preview(&argv, None), "ls -l a");
        let long = preview(&shell(&"€".repeat(9_000)), None);
        assert_eq!((long.len(), long.trim_matches('€')), (255, ""));
    }

    #[test]
    fn secrets_are_replaced_wherever_the_cuts_fall() {
        let secret = patterns("hunter2!");
        let text = preview(&shell("echo hunter2! \"hunter2!\""), Some(&secret));
        assert_eq!(text, "echo «S» \"«S»\"");
        for before in 240..260 {
            let text = preview(
                &shell(&format!("{}hunter2!", "x".repeat(before))),
                Some(&secret),
            );
            assert!(!text.contains("hu"), "{text}");
        }
        let long: String = (0..LOOKED_AT_MAX_BYTES / 2)
            .map(|n| format!("{n:04x}"))
            .collect();
        let text = preview(&shell(&format!("echo {long}")), Some(&patterns(&long)));
        assert_eq!(text, "echo");
        let lines = preview(
            &shell("echo 'a\nlong secret'"),
            Some(&patterns("a\nlong secret")),
        );
        assert_eq!(lines, "echo '«S»'");
    }
}
