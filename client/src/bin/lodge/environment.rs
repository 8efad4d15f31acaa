//! `-e`, `--secret` and `--env-file`: which variables a run gets.
//!
//! An environment file has one `NAME=VALUE` a line. The value is taken as it is up to the end of the line: quotes,
//! blanks and `$` mean themselves. A line `NAME` takes the value from the caller's environment. Empty lines and lines
//! that start with `#` are skipped. Later mentions of a name replace earlier ones, and `-e` replaces files.

use std::collections::BTreeMap;
use std::env::{self, VarError};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use lodge_client::Secret;

use crate::failure::Advice;

/// The options of it.
#[derive(Debug, clap::Args)]
pub(crate) struct Environment {
    /// Variable of this run alone; without a value it is taken from your environment
    #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// Variable from your environment whose value is masked in output and logs
    ///
    /// The run ends with all its processes, so that none of them keeps the value.
    #[arg(long = "secret", value_name = "NAME")]
    secrets: Vec<String>,
    /// File with one NAME=VALUE a line
    ///
    /// Values are taken as they are, quotes and `$` included. A line NAME takes the value from your environment. Empty
    /// lines and lines that start with `#` are skipped. `-e` replaces what a file says.
    #[arg(long = "env-file", value_name = "FILE")]
    files: Vec<PathBuf>,
}

impl Environment {
    /// The variables, each name once.
    pub(crate) fn variables(&self) -> Result<BTreeMap<String, String>> {
        let mut variables = BTreeMap::new();
        for file in &self.files {
            read_file(file, &mut variables)?;
        }
        for argument in &self.env {
            let (name, value) = variable(argument)?;
            variables.insert(name, value);
        }
        Ok(variables)
    }

    /// The secret ones.
    pub(crate) fn secrets(&self) -> Result<Vec<(String, Secret)>> {
        self.secrets.iter().map(|name| secret(name)).collect()
    }
}

fn read_file(path: &Path, variables: &mut BTreeMap<String, String>) -> Result<()> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    for (index, line) in text.lines().enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let place = || format!("{}, line {}", path.display(), index + 1);
        let (name, value) = variable(line).with_context(place)?;
        variables.insert(name, value);
    }
    Ok(())
}

/// `NAME=VALUE`, or `NAME` with the value of the caller's environment.
fn variable(text: &str) -> Result<(String, String)> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, value.to_owned()),
        None => (text, from_caller(text)?),
    };
    if name.is_empty() || name.contains(char::is_whitespace) {
        // Not the text itself: it may hold a value that was not meant to be shown.
        bail!("a variable's name is empty or has blanks in it");
    }
    Ok((name.to_owned(), value))
}

fn secret(name: &str) -> Result<(String, Secret)> {
    if name.contains('=') {
        // Arguments are visible to every user of this machine.
        return Err(Advice::new(
            "--secret takes a name only",
            "export the variable and give its name; a command line can be read by others",
        )
        .into());
    }
    Ok((name.to_owned(), Secret::from(from_caller(name)?)))
}

fn from_caller(name: &str) -> Result<String> {
    match env::var(name) {
        Ok(value) => Ok(value),
        Err(VarError::NotPresent) => bail!("{name} is not set in your environment"),
        Err(VarError::NotUnicode(_)) => bail!("{name} is not UTF-8 in your environment"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<BTreeMap<String, String>> {
        let file = tempfile::NamedTempFile::new()?;
        fs::write(file.path(), text)?;
        let mut variables = BTreeMap::new();
        read_file(file.path(), &mut variables)?;
        Ok(variables)
    }

    #[test]
    fn a_file_is_taken_literally() {
        let variables = read("# comment\n\nA=1\nB=\"x\" $Y # z\nEMPTY=\nA= 2 \nC=a=b\r\n").unwrap();
        let expected = [
            ("A", " 2 "),
            ("B", "\"x\" $Y # z"),
            ("C", "a=b"),
            ("EMPTY", ""),
        ];
        assert_eq!(
            variables,
            expected.map(|(k, v)| (k.into(), v.into())).into()
        );
    }

    #[test]
    fn a_name_alone_is_the_callers() {
        assert_eq!(read("PATH\n").unwrap()["PATH"], env::var("PATH").unwrap());
    }

    #[test]
    fn mistakes_name_their_line_and_never_the_value() {
        for text in [
            "A=1\nexport B=value\n",
            "A=1\n=value\n",
            "A=1\nLODGE_NOT_SET_ANYWHERE\n",
        ] {
            let error = format!("{:#}", read(text).expect_err(text));
            assert!(error.contains("line 2"), "{error}");
            assert!(!error.contains("value"), "{error}");
        }
    }

    #[test]
    fn secrets_come_from_the_environment_only() {
        assert!(secret("TOKEN=x").is_err());
        assert!(secret("PATH").is_ok());
        assert!(secret("LODGE_NOT_SET_ANYWHERE").is_err());
    }
}
