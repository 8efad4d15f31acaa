//! The command line, and how it joins the file and the environment.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use super::keys::KEYS;
use super::raw::Raw;
use super::resolve::{Config, Mistake};

/// Variable that names the configuration file.
const CONFIG_VARIABLE: &str = "LODGE_CONFIG";

/// What the command line asks for.
#[derive(Debug)]
pub enum Invocation {
    /// Serve.
    Serve(Config),
    /// Only say whether the settings are right; they are.
    CheckConfig,
    /// Check the host.
    Doctor(Config, ReportFormat),
}

/// How a report is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportFormat {
    /// For people.
    Text,
    /// One JSON object.
    Json,
}

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file that was named cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Everything that is wrong.
    #[error("{}", list(.0))]
    Mistakes(Vec<Mistake>),
}

fn list(mistakes: &[Mistake]) -> String {
    let lines: Vec<String> = mistakes
        .iter()
        .map(|mistake| format!("  {mistake}"))
        .collect();
    format!(
        "the configuration has {} mistake(s):\n{}",
        mistakes.len(),
        lines.join("\n")
    )
}

impl Invocation {
    /// Reads command line, environment and file. Ends the process for `--help`, `--version` and unknown flags.
    pub fn read() -> Result<Self, SettingsError> {
        let matches = command().get_matches();
        let config = config(&matches)?;
        if matches.get_flag("check-config") {
            return Ok(Self::CheckConfig);
        }
        match matches.subcommand() {
            Some(("doctor", doctor)) => {
                let json = doctor.get_flag("json");
                let format = if json {
                    ReportFormat::Json
                } else {
                    ReportFormat::Text
                };
                Ok(Self::Doctor(config, format))
            }
            _ => Ok(Self::Serve(config)),
        }
    }
}

fn command() -> Command {
    let settings = KEYS.iter().map(|key| {
        Arg::new(key.flag())
            .long(key.flag())
            .value_name("VALUE")
            .help(key.help)
            .global(true)
    });
    Command::new("lodged")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Gives every AI agent one persistent, isolated Linux room")
        .arg(
            Arg::new("config")
                .long("config")
                .value_name("FILE")
                .env(CONFIG_VARIABLE)
                .value_parser(value_parser!(PathBuf))
                .help("Configuration file [default: /etc/lodge/lodged.toml, if it is there]")
                .global(true),
        )
        .arg(
            Arg::new("check-config")
                .long("check-config")
                .action(ArgAction::SetTrue)
                .help("Report every mistake in the configuration, and end"),
        )
        .args(settings)
        .subcommand(
            Command::new("doctor")
                .about("Check what this host lacks, and boot a probe sandbox")
                .arg(
                    Arg::new("json")
                        .long("json")
                        .action(ArgAction::SetTrue)
                        .help("Print one JSON object"),
                ),
        )
}

fn config(matches: &ArgMatches) -> Result<Config, SettingsError> {
    let mut raw = Raw::default();
    if let Some((path, text)) = file(matches.get_one::<PathBuf>("config"))? {
        raw = raw.file(&path, &text);
    }
    raw = raw
        .environment(|name| std::env::var(name).ok())
        .flags(|flag| matches.get_one::<String>(flag).cloned());
    Config::resolve(raw).map_err(SettingsError::Mistakes)
}

/// The file's text. Only the default file may be missing.
fn file(named: Option<&PathBuf>) -> Result<Option<(PathBuf, String)>, SettingsError> {
    let path = named.map_or(Config::default_file(), PathBuf::as_path);
    match read(path) {
        Ok(text) => Ok(Some((path.to_owned(), text))),
        Err(error) if named.is_none() && error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(SettingsError::Unreadable {
            path: path.to_owned(),
            source,
        }),
    }
}

fn read(path: &Path) -> io::Result<String> {
    fs::read_to_string(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn flags_are_taken_before_and_after_a_subcommand() {
        let matches = command()
            .try_get_matches_from([
                "lodged",
                "--state-dir",
                "/s",
                "doctor",
                "--log-level",
                "debug",
            ])
            .expect("valid");
        let (_, doctor) = matches.subcommand().expect("doctor");
        assert_eq!(
            doctor.get_one::<String>("state-dir").map(String::as_str),
            Some("/s")
        );
        assert_eq!(
            matches.get_one::<String>("log-level").map(String::as_str),
            Some("debug")
        );
    }

    #[test]
    fn an_unknown_flag_is_an_error() {
        assert!(
            command()
                .try_get_matches_from(["lodged", "--state-dri", "/s"])
                .is_err()
        );
    }
}
