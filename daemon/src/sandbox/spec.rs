//! What a sandbox is made from, validated once, and kept in its record for as long as it lives.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::sandbox::confinement::Confinement;
use crate::sandbox::id::{SandboxName, Tenant};
use crate::sandbox::idle::IdlePolicy;
use crate::sandbox::limits::{Limits, RequestedLimits, Shortfall};

/// Variables of a sandbox. Each is copied into every run, so that a few hundred are plenty.
const ENV_COUNT_MAX: usize = 1000;
/// Name and value of one variable, in bytes: one string of execve(2) may not exceed 128 KiB.
const ENV_BYTES_MAX: usize = 131_000;
/// All variables of a sandbox, in bytes; they are in its record and in every listing.
const ENV_TOTAL_BYTES_MAX: usize = 256 << 10;
/// Labels of a sandbox.
const LABEL_COUNT_MAX: usize = 64;
/// A label's key, in bytes.
const LABEL_KEY_MAX: usize = 128;
/// A label's value, in bytes.
const LABEL_VALUE_MAX: usize = 1024;

const PUT_IT_IN_A_FILE: &str = "put it into a file of the sandbox instead";

/// What a sandbox is made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Whose it is.
    pub tenant: Tenant,
    /// The caller's name for it.
    pub name: SandboxName,
    /// The name under which its image was asked for.
    pub image: String,
    /// The digest of its image.
    pub image_digest: String,
    /// Variables for every run.
    pub env: BTreeMap<String, String>,
    /// The caller's labels.
    pub labels: BTreeMap<String, String>,
    /// Limits as asked for.
    pub requested: RequestedLimits,
    /// Limits as resolved against the defaults of the day it was made.
    pub limits: Limits,
    /// Whether limits that are not enforced were accepted.
    pub shortfall: Shortfall,
    /// What happens to it when nobody uses it.
    pub idle: IdlePolicy,
    /// How tightly it is held.
    #[serde(default, skip_serializing_if = "Confinement::is_default")]
    pub confinement: Confinement,
}

/// Checks a sandbox's variables.
pub fn check_env(env: &BTreeMap<String, String>) -> Result<()> {
    if env.len() > ENV_COUNT_MAX {
        return Err(too_many("variables", env.len(), ENV_COUNT_MAX));
    }
    for (name, value) in env {
        check_variable(name, value)?;
    }
    let total: usize = env
        .iter()
        .map(|(name, value)| name.len() + value.len() + 2)
        .sum();
    if total > ENV_TOTAL_BYTES_MAX {
        return Err(Error::invalid(
            "ENV_TOO_LARGE",
            format!("the sandbox's variables are {total} bytes, more than {ENV_TOTAL_BYTES_MAX}"),
        )
        .hint(PUT_IT_IN_A_FILE));
    }
    Ok(())
}

fn check_variable(name: &str, value: &str) -> Result<()> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err(Error::invalid(
            "INVALID_ENV_NAME",
            format!("not a name of a variable: {:?}", clip(name)),
        )
        .hint("a name is not empty and has no `=` and no NUL"));
    }
    if value.contains('\0') {
        return Err(Error::invalid(
            "INVALID_ENV_VALUE",
            format!("the value of variable {:?} has a NUL", clip(name)),
        )
        .hint("the kernel ends a variable at its first NUL: encode the value"));
    }
    if name.len() + value.len() > ENV_BYTES_MAX {
        return Err(Error::invalid(
            "ENV_TOO_LARGE",
            format!(
                "variable {:?} is longer than {ENV_BYTES_MAX} bytes",
                clip(name)
            ),
        )
        .hint(PUT_IT_IN_A_FILE));
    }
    Ok(())
}

/// Checks a sandbox's labels.
pub fn check_labels(labels: &BTreeMap<String, String>) -> Result<()> {
    if labels.len() > LABEL_COUNT_MAX {
        return Err(too_many("labels", labels.len(), LABEL_COUNT_MAX));
    }
    for (key, value) in labels {
        let key_ok = (1..=LABEL_KEY_MAX).contains(&key.len()) && !key.contains(char::is_control);
        if !key_ok || value.len() > LABEL_VALUE_MAX || value.contains('\0') {
            return Err(Error::invalid("INVALID_LABEL", format!("not a label: {:?}", clip(key)))
                .hint(format!(
                    "a key is 1 to {LABEL_KEY_MAX} bytes without control characters, a value at \
                     most {LABEL_VALUE_MAX} bytes without NUL"
                )));
        }
    }
    Ok(())
}

fn too_many(what: &str, count: usize, max: usize) -> Error {
    Error::invalid("TOO_MANY", format!("{count} {what}, more than {max}"))
        .hint("each is in the record and in every listing: leave out what no run needs")
}

/// The first characters of a hostile text, for a message.
fn clip(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(key: &str, value: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(key.to_owned(), value.to_owned())])
    }

    /// ATTACKS A02, for the variables of a sandbox.
    #[test]
    fn hostile_variables_are_refused() {
        for (name, value) in [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "\0")] {
            assert!(
                check_env(&map(name, value)).is_err(),
                "{name:?}={value:?} was accepted"
            );
        }
        assert!(check_env(&map("A", &"x".repeat(1 << 20))).is_err());
        assert!(check_env(&map("A", "line\nline 'quoted' \"=\"")).is_ok());
        assert!(check_env(&map("A", &"x".repeat(100 << 10))).is_ok());
        let many = (0..2000)
            .map(|n| (format!("V{n}"), String::new()))
            .collect();
        assert!(check_env(&many).is_err());
    }

    #[test]
    fn hostile_labels_are_refused() {
        assert!(check_labels(&map("", "x")).is_err());
        assert!(check_labels(&map("a\nb", "x")).is_err());
        assert!(check_labels(&map("team", &"x".repeat(2000))).is_err());
        assert!(check_labels(&map("team", "agents")).is_ok());
    }
}
