//! One break of the product, as its file in `tests/mutations/` tells it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

/// A break, and the test that must notice it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mutation {
    /// The file's name without its extension.
    #[serde(skip)]
    pub(crate) name: String,
    /// Which file is broken, from the project's root.
    pub(crate) file: String,
    /// Text that is in it exactly once.
    pub(crate) find: String,
    /// What it becomes.
    pub(crate) replace: String,
    /// Name of the test that must turn red.
    pub(crate) test: String,
    /// The crate whose own test it is, built with the break. Absent: an end-to-end test, run against broken binaries.
    pub(crate) package: Option<String>,
    /// The storage driver on which the test is run; overlay if not given.
    pub(crate) storage: Option<String>,
}

impl Mutation {
    /// All of them, or those that are named, in the order of their names.
    pub(crate) fn all(wanted: &[String]) -> Result<Vec<Self>> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("mutations");
        let mut all = Vec::new();
        for entry in fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
            let path = entry?.path();
            if path.extension().is_none_or(|e| e != "toml") {
                continue;
            }
            let text = fs::read_to_string(&path)?;
            let mut mutation: Self =
                toml::from_str(&text).with_context(|| path.display().to_string())?;
            mutation.name = path
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            all.push(mutation);
        }
        all.retain(|m| wanted.is_empty() || wanted.contains(&m.name));
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{files, root};

    /// A break that no longer fits is noticed by whoever changes the line, and not when all breaks are made the next time.
    #[test]
    fn every_break_finds_its_line_and_has_a_test() -> Result<()> {
        let mut sources = String::new();
        for path in files(&root())? {
            if path.extension().is_some_and(|e| e == "rs") {
                sources += &fs::read_to_string(root().join(path))?;
            }
        }
        let mut wrong = Vec::new();
        for mutation in Mutation::all(&[])? {
            let text = fs::read_to_string(root().join(&mutation.file))?;
            let found = text.matches(&mutation.find).count();
            let has_test = sources.contains(&format!("fn {}(", mutation.test));
            if found != 1 || !has_test {
                let name = mutation.name;
                wrong.push(format!(
                    "{name}: text {found} times, test there: {has_test}"
                ));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    }
}
