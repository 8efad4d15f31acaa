//! Ids and names, validated once, at the edge.
//!
//! Ids are the daemon's: 20 characters of `[a-z0-9]`, usable in paths, cgroup names and DNS labels. Names are the
//! caller's and never become part of a path.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Characters of an id. 36^20 is about 2^103: two ids never meet by chance.
const ID_LEN: usize = 20;
const ID_ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
/// Longest sandbox name, in bytes.
const NAME_MAX: usize = 128;
/// Longest tenant, in bytes.
const TENANT_MAX: usize = 63;

macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident, $what:literal, $reason:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// A new id from the operating system's random source.
            pub fn random() -> Self {
                Self(random_id())
            }

            /// Validates an id that came from outside.
            pub fn parse(text: &str) -> Result<Self> {
                if text.len() == ID_LEN && text.bytes().all(|b| ID_ALPHABET.contains(&b)) {
                    Ok(Self(text.to_owned()))
                } else {
                    Err(Error::invalid($reason, concat!("not a ", $what, " id"))
                        .hint("an id is 20 characters of [a-z0-9], as the daemon gave it"))
                }
            }

            /// The id's text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;
            fn try_from(text: String) -> Result<Self> {
                Self::parse(&text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }
    };
}

id_type!(
    /// A sandbox's id.
    SandboxId, "sandbox", "INVALID_SANDBOX_ID"
);
id_type!(
    /// A run's id.
    RunId, "run", "INVALID_RUN_ID"
);

fn random_id() -> String {
    let mut id = String::with_capacity(ID_LEN);
    while id.len() < ID_LEN {
        let mut bytes = [0u8; 32];
        getrandom::fill(&mut bytes)
            .expect("the kernel's random source does not fail once it is seeded");
        // Bytes from 252 up would favour the first letters: 252 = 7 * 36.
        for b in bytes.iter().filter(|b| **b < 252).take(ID_LEN - id.len()) {
            id.push(char::from(ID_ALPHABET[usize::from(b % 36)]));
        }
    }
    id
}

/// A sandbox's name: the caller's key for it, unique in a tenant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SandboxName(String);

impl SandboxName {
    /// Validates a name: `[A-Za-z0-9][A-Za-z0-9._-]{0,127}`.
    pub fn parse(text: &str) -> Result<Self> {
        let mut bytes = text.bytes();
        let head = bytes.next().is_some_and(|b| b.is_ascii_alphanumeric());
        let tail = bytes.all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        if head && tail && text.len() <= NAME_MAX {
            Ok(Self(text.to_owned()))
        } else {
            Err(Error::invalid(
                "INVALID_SANDBOX_NAME",
                format!("not a sandbox name: {:?}", clip(text)),
            )
            .hint("a name is 1 to 128 of [A-Za-z0-9._-] and begins with a letter or a digit"))
        }
    }

    /// The name's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The hostname for a sandbox of this name: cleaned to `[a-z0-9-]` and cut to 63 characters.
    pub fn hostname(&self) -> String {
        let clean: String = self
            .0
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() {
                    c.to_ascii_lowercase()
                } else {
                    '-'
                }
            })
            .take(63)
            .collect();
        clean.trim_matches('-').to_owned()
    }
}

impl fmt::Display for SandboxName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for SandboxName {
    type Error = Error;
    fn try_from(text: String) -> Result<Self> {
        Self::parse(&text)
    }
}

impl From<SandboxName> for String {
    fn from(name: SandboxName) -> String {
        name.0
    }
}

/// Whose a sandbox is. There is one tenant until tokens name others; every record carries it from the start.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Tenant(String);

impl Tenant {
    /// Validates a tenant: `[a-z0-9][a-z0-9-]{0,62}`.
    pub fn parse(text: &str) -> Result<Self> {
        let head = text.bytes().next().is_some_and(|b| b != b'-');
        let rest = text.bytes().all(|b| ID_ALPHABET.contains(&b) || b == b'-');
        if head && rest && text.len() <= TENANT_MAX {
            Ok(Self(text.to_owned()))
        } else {
            Err(
                Error::invalid("INVALID_TENANT", format!("not a tenant: {:?}", clip(text)))
                    .hint("leave it out: there is one, `default`"),
            )
        }
    }

    /// The tenant's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Tenant {
    fn default() -> Self {
        Self("default".to_owned())
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Tenant {
    type Error = Error;
    fn try_from(text: String) -> Result<Self> {
        Self::parse(&text)
    }
}

impl From<Tenant> for String {
    fn from(tenant: Tenant) -> String {
        tenant.0
    }
}

/// The first characters of a hostile text, for a message.
fn clip(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_ids_are_valid_and_differ() {
        let (a, b) = (SandboxId::random(), SandboxId::random());
        assert_ne!(a, b);
        assert_eq!(SandboxId::parse(a.as_str()).expect("valid"), a);
    }

    #[test]
    fn hostile_names_are_refused() {
        let long = "a".repeat(129);
        for name in [
            "", "../x", "a/b", "-rf", ";id", "%2e%2e", "a\n", "a\0", "ü", ".", "..", &long,
        ] {
            assert!(SandboxName::parse(name).is_err(), "{name:?} was accepted");
        }
        assert!(SandboxName::parse(&"a".repeat(128)).is_ok());
    }

    #[test]
    fn hostname_is_a_dns_label() {
        let name = SandboxName::parse("My_Agent.1--").expect("valid");
        assert_eq!(name.hostname(), "my-agent-1");
    }
}
