//! Settings as typed, from each source, with where they came from. Checks only that the key exists and that the value
//! is of its kind; what it means is decided in `resolve`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use super::keys::{self, Key, Kind};
use super::resolve::Mistake;

/// What all of our variables begin with.
const PREFIX: &str = "LODGE_";
/// Ours that are no settings: the file's name, the client's, and those of tests.
const OTHERS: [&str; 5] = [
    "LODGE_CONFIG",
    "LODGE_ENDPOINT",
    "LODGE_SANDBOX",
    "LODGE_FAULTS",
    "LODGE_TEST_",
];

/// Where a setting came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The configuration file.
    File(PathBuf),
    /// An environment variable.
    Environment(String),
    /// A flag.
    Flag(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Environment(name) => write!(f, "environment variable {name}"),
            Self::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// A value of one of the kinds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Text(String),
    Number(u64),
}

/// One setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) value: Value,
    pub(super) source: Source,
}

/// Settings as typed. Later sources override earlier ones.
#[derive(Debug, Default)]
pub struct Raw {
    settings: BTreeMap<&'static str, Setting>,
    mistakes: Vec<Mistake>,
}

impl Raw {
    /// Adds the text of a configuration file.
    #[must_use]
    pub fn file(mut self, path: &Path, text: &str) -> Self {
        let source = Source::File(path.to_owned());
        match text.parse::<toml::Table>() {
            Ok(table) => self.table(&source, "", table),
            Err(error) => {
                let message = error.to_string().trim_end().to_owned();
                self.mistakes.push(Mistake::new(source, message));
            }
        }
        self
    }

    /// Adds environment variables that name a key.
    #[must_use]
    pub fn environment(mut self, lookup: impl Fn(&str) -> Option<String>) -> Self {
        for key in keys::KEYS {
            let variable = key.variable();
            if let Some(text) = lookup(&variable) {
                self.text(key, Source::Environment(variable), &text);
            }
        }
        self
    }

    /// Adds flags.
    #[must_use]
    pub fn flags(mut self, lookup: impl Fn(&str) -> Option<String>) -> Self {
        for key in keys::KEYS {
            let flag = key.flag();
            if let Some(text) = lookup(&flag) {
                self.text(key, Source::Flag(flag), &text);
            }
        }
        self
    }

    pub(super) fn into_parts(self) -> (BTreeMap<&'static str, Setting>, Vec<Mistake>) {
        (self.settings, self.mistakes)
    }

    fn table(&mut self, source: &Source, prefix: &str, table: toml::Table) {
        for (name, value) in table {
            let name = format!("{prefix}{name}");
            match (keys::find(&name), value) {
                (Some(key), value) => self.typed(key, source, value),
                (None, toml::Value::Table(inner)) if is_section(&name) => {
                    self.table(source, &format!("{name}."), inner);
                }
                (None, _) if is_section(&name) => {
                    let message = format!("{name} is a table: write [{name}], and its keys below");
                    self.mistakes.push(Mistake::new(source.clone(), message));
                }
                (None, _) => {
                    self.mistakes
                        .push(Mistake::new(source.clone(), format!("unknown key {name}")));
                }
            }
        }
    }

    fn typed(&mut self, key: &'static Key, source: &Source, value: toml::Value) {
        let value = match (key.kind, value) {
            (Kind::Text, toml::Value::String(text)) => Some(Value::Text(text)),
            (Kind::Number, toml::Value::Integer(number)) => {
                u64::try_from(number).ok().map(Value::Number)
            }
            _ => None,
        };
        self.put(key, source.clone(), value);
    }

    fn text(&mut self, key: &'static Key, source: Source, text: &str) {
        let value = match key.kind {
            Kind::Text => Some(Value::Text(text.to_owned())),
            Kind::Number => text.parse().ok().map(Value::Number),
        };
        self.put(key, source, value);
    }

    fn put(&mut self, key: &'static Key, source: Source, value: Option<Value>) {
        if let Some(value) = value {
            self.settings.insert(key.name, Setting { value, source });
            return;
        }
        let wanted = match key.kind {
            Kind::Text => "text",
            Kind::Number => "a whole number, not negative",
        };
        self.mistakes.push(Mistake::new(
            source,
            format!("{} must be {wanted}", key.name),
        ));
    }
}

/// Variables that look as if they were meant for the daemon and name no key. The environment is shared with others, so that they
/// are no mistake, but they are worth a word.
pub fn unknown_variables(names: impl IntoIterator<Item = String>) -> Vec<String> {
    let known: BTreeSet<String> = keys::KEYS.iter().map(Key::variable).collect();
    names
        .into_iter()
        .filter(|name| {
            name.starts_with(PREFIX)
                && !known.contains(name)
                && !OTHERS.iter().any(|other| name.starts_with(other))
        })
        .collect()
}

/// Whether `name` is a table of the file, such as `limits`.
fn is_section(name: &str) -> bool {
    keys::KEYS.iter().any(|key| {
        key.name
            .strip_prefix(name)
            .is_some_and(|rest| rest.starts_with('.'))
    })
}
