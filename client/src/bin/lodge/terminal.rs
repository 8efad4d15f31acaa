//! Writing to people and pipes. What comes from a sandbox is escaped before a terminal can obey it, except a run's own
//! output, which is passed through as it is.

use std::borrow::Cow;
use std::io::{self, IsTerminal as _, Write as _};

use anyhow::{Context as _, Result};

use crate::failure::ReaderGone;

/// Writes a line of data to standard output.
pub(crate) fn data(line: &str) -> Result<()> {
    raw(&mut io::stdout().lock(), format!("{line}\n").as_bytes())
}

/// Writes bytes as they are, at once.
pub(crate) fn raw(to: &mut dyn io::Write, bytes: &[u8]) -> Result<()> {
    match to.write_all(bytes).and_then(|()| to.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(ReaderGone.into()),
        result => result.context("cannot write the output"),
    }
}

/// Writes a message for people to standard error.
pub(crate) fn note(message: &str) {
    message_line("lodge", message);
}

/// Writes how something can be mended to standard error.
pub(crate) fn hint(message: &str) {
    message_line("hint", message);
}

fn message_line(label: &str, message: &str) {
    // Without standard error there is nobody to be told.
    let _ = writeln!(io::stderr(), "{label}: {}", escape(message));
}

/// Whether a person watches our messages.
pub(crate) fn is_watched() -> bool {
    io::stderr().is_terminal()
}

/// Control characters, and those that reorder text, as escapes.
pub(crate) fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() * 2);
    for character in text.chars() {
        match is_unsafe(character) {
            true => escaped.extend(character.escape_default()),
            false => escaped.push(character),
        }
    }
    Cow::Owned(escaped)
}

fn is_unsafe(character: char) -> bool {
    // Beside control characters: line and paragraph separators, marks and overrides of direction.
    character.is_control()
        || matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attack_e41_control_bytes_are_escaped() {
        assert_eq!(escape("plain ü « text"), "plain ü « text");
        assert_eq!(escape("a\u{1b}[2Jb\r\n"), "a\\u{1b}[2Jb\\r\\n");
        assert_eq!(
            escape("\u{9b}31m\u{202e}evil\u{7f}"),
            "\\u{9b}31m\\u{202e}evil\\u{7f}"
        );
    }
}
