//! `recipe.toml`: which packages an image is made of. The format is described in `images/README.md`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

/// The recipe in its directory.
const FILE: &str = "recipe.toml";
/// Recipes that stand on each other; more is taken for a circle.
const MAX_DEPTH: usize = 8;
/// mmdebstrap's smallest set of packages with apt.
const DEFAULT_VARIANT: &str = "minbase";

/// A recipe as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    /// One line for people; required, so that nobody has to guess.
    #[serde(rename = "description")]
    _description: String,
    extends: Option<PathBuf>,
    suite: Option<String>,
    variant: Option<String>,
    #[serde(default)]
    packages: Vec<String>,
    customise: Option<PathBuf>,
}

/// A recipe with all that it stands on.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Recipe {
    /// The distribution's code name; `None` is the host's.
    pub(super) suite: Option<String>,
    /// mmdebstrap's variant.
    pub(super) variant: String,
    /// Packages, each once.
    pub(super) packages: Vec<String>,
    /// Scripts to run at the end, in order.
    pub(super) scripts: Vec<PathBuf>,
}

impl Recipe {
    /// Reads `dir/recipe.toml` and what it extends.
    pub(super) fn read(dir: &Path) -> Result<Self> {
        let mut recipe = Self::default();
        let mut next = Some(dir.to_owned());
        // From the recipe itself to what it stands on: the first to say something wins, lists are put in front.
        for _ in 0..MAX_DEPTH {
            let Some(dir) = next else {
                return Ok(recipe.complete());
            };
            let written = Written::read(&dir)?;
            next = written.extends.as_ref().map(|base| dir.join(base));
            recipe.stand_on(written, &dir)?;
        }
        ensure!(
            next.is_none(),
            "{}: more than {MAX_DEPTH} recipes extend each other",
            dir.display()
        );
        Ok(recipe.complete())
    }

    fn stand_on(&mut self, base: Written, dir: &Path) -> Result<()> {
        self.suite = self.suite.take().or(base.suite);
        if self.variant.is_empty() {
            self.variant = base.variant.unwrap_or_default();
        }
        self.packages.splice(0..0, base.packages);
        if let Some(script) = base.customise {
            let script = dir.join(script);
            let absolute = fs::canonicalize(&script);
            let absolute = absolute.with_context(|| format!("cannot find {}", script.display()))?;
            self.scripts.insert(0, absolute);
        }
        Ok(())
    }

    fn complete(mut self) -> Self {
        if self.variant.is_empty() {
            DEFAULT_VARIANT.clone_into(&mut self.variant);
        }
        self.packages.sort();
        self.packages.dedup();
        self
    }
}

impl Written {
    fn read(dir: &Path) -> Result<Self> {
        let path = dir.join(FILE);
        let text = fs::read_to_string(&path);
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("{} is not a recipe", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, name: &str, text: &str) -> PathBuf {
        let dir = dir.join(name);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(FILE), text).unwrap();
        dir
    }

    #[test]
    fn a_recipe_adds_to_what_it_extends() {
        let dir = tempfile::tempdir().unwrap();
        let base =
            "description = 'b'\nsuite = 'sid'\npackages = ['git', 'bash']\ncustomise = 'c.sh'";
        let base = write(dir.path(), "base", base);
        fs::write(base.join("c.sh"), "").unwrap();
        let top = "description = 't'\nextends = '../base'\npackages = ['npm', 'git']";
        let recipe = Recipe::read(&write(dir.path(), "top", top)).unwrap();
        assert_eq!(recipe.packages, ["bash", "git", "npm"]);
        assert_eq!(
            (recipe.suite.as_deref(), recipe.variant.as_str()),
            (Some("sid"), "minbase")
        );
        assert_eq!(
            recipe.scripts,
            [fs::canonicalize(base.join("c.sh")).unwrap()]
        );
    }

    #[test]
    fn mistakes_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        for text in [
            "description = 'x'\npackage = []",
            "packages = []",
            "description = 'x'\ncustomise = 'missing.sh'",
            "description = 'x'\nextends = '../missing'",
            "description = 'x'\nextends = '../x'",
        ] {
            assert!(
                Recipe::read(&write(dir.path(), "x", text)).is_err(),
                "{text}"
            );
        }
    }

    #[test]
    fn the_projects_own_recipes_are_good() {
        let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../images");
        for name in ["base", "agent"] {
            let recipe = Recipe::read(&images.join(name)).unwrap();
            assert!(
                recipe.packages.iter().any(|package| package == "bash"),
                "{name}"
            );
        }
    }
}
