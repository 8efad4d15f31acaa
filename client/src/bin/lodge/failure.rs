//! Errors, as people and exit codes tell them.

use std::fmt;
use std::process::ExitCode;

use anyhow::Error;

use crate::terminal;

/// The exit code of Lodge's own failures, wrong usage among them; no command's exit code means the same by convention.
pub(crate) const LODGE_FAILED: u8 = 125;
/// 128 + SIGPIPE: what a program that does not look exits with when its reader has gone.
pub(crate) const READER_GONE: u8 = 141;

/// Whoever read our standard output has stopped. Ends the program without a word.
#[derive(Debug, thiserror::Error)]
#[error("standard output was closed")]
pub(crate) struct ReaderGone;

/// A failure of the command itself, with what to do about it.
#[derive(Debug)]
pub(crate) struct Advice {
    message: String,
    hint: String,
}

impl Advice {
    /// `message` is lower case, without full stop.
    pub(crate) fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            hint: hint.into(),
        }
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Advice {}

/// How to mend it, where that is known.
pub(crate) fn hint(error: &Error) -> Option<&str> {
    let advice = error
        .downcast_ref::<Advice>()
        .map(|advice| advice.hint.as_str());
    advice.or_else(|| error.downcast_ref::<lodge_client::Error>()?.hint())
}

/// The message with its causes, in one line.
pub(crate) fn message(error: &Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        // Layers below often repeat what they wrap.
        if text.ends_with(&cause) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause);
    }
    text
}

/// Tells it on standard error, and gives the exit code.
pub(crate) fn report(error: &Error) -> ExitCode {
    if error.is::<ReaderGone>() {
        return ExitCode::from(READER_GONE);
    }
    tell(error);
    ExitCode::from(LODGE_FAILED)
}

/// Tells it on standard error.
pub(crate) fn tell(error: &Error) {
    terminal::note(&message(error));
    if let Some(hint) = hint(error) {
        terminal::hint(hint);
    }
}

/// Tells what clap says. Help and version are no failure.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    // Nobody is left to be told if this fails.
    let _ = error.print();
    match error.use_stderr() {
        true => ExitCode::from(LODGE_FAILED),
        false => ExitCode::SUCCESS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_every_cause_once() {
        let error = Error::msg("no such file")
            .context("read x")
            .context("read x: no such file");
        assert_eq!(
            message(&error),
            "read x: no such file: read x: no such file"
        );
        let error = Error::msg("b").context("a: b");
        assert_eq!(message(&error), "a: b");
    }

    #[test]
    fn a_hint_is_found_below_context() {
        let error = Error::new(Advice::new("no", "try again")).context("while trying");
        assert_eq!(hint(&error), Some("try again"));
    }
}
