//! The environment of one call: rules for names and values, and the layers of which a run's environment is made.
//!
//! It knows nothing of where a run gets its defaults (PATH, HOME, …): the child adds those, inside. Values never
//! appear in an error, only names.

use std::collections::HashMap;
use std::fmt;

use zeroize::Zeroizing;

use crate::error::{Error, ErrorKind, Result};

/// Longest `NAME=value`, in bytes: the kernel takes 131,072 with the final NUL (`MAX_ARG_STRLEN`).
pub const VARIABLE_MAX_BYTES: usize = 131_000;
/// Most variables of one call, `env` and `secret_env` together.
pub const VARIABLES_MAX: usize = 8_192;
/// Shortest secret, in bytes: masking a shorter one would mangle ordinary output.
pub const SECRET_MIN_BYTES: usize = 4;
/// Most bytes of all secret values of one call. Masking keeps tables of about 50 times this while the run lives.
pub const SECRETS_MAX_BYTES: usize = 256 * 1024;
/// Most bytes of arguments and environment together, pointers included. The kernel takes a quarter of the stack
/// limit, 2 MiB by default; the rest is for the child's own defaults.
pub const EXEC_MAX_BYTES: usize = 1_536 * 1024;
/// What a string costs beside its bytes: its `=` or final NUL, and its pointer.
const STRING_OVERHEAD: usize = 10;

/// A secret variable. Its value is wiped when dropped and never printed.
#[derive(Clone)]
pub struct Secret {
    /// The variable's name; output shows `«NAME»` in place of the value.
    pub name: String,
    /// The value.
    pub value: Zeroizing<String>,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({:?})", self.name)
    }
}

/// The variables of one call, validated. Each name is there once.
#[derive(Clone, Default)]
pub struct CallEnv {
    plain: Vec<(String, String)>,
    secret: Vec<Secret>,
}

impl fmt::Debug for CallEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CallEnv({} plain, {} secret)",
            self.plain.len(),
            self.secret.len()
        )
    }
}

impl CallEnv {
    /// Validates the variables of a call.
    pub fn new(plain: Vec<(String, String)>, secret: Vec<Secret>) -> Result<Self> {
        if plain.len() + secret.len() > VARIABLES_MAX {
            return Err(Error::invalid(
                "TOO_MANY_VARIABLES",
                format!(
                    "{} variables; at most {VARIABLES_MAX} are taken",
                    plain.len() + secret.len()
                ),
            ));
        }
        for (name, value) in &plain {
            check_variable(name, value)?;
        }
        for one in &secret {
            check_variable(&one.name, &one.value)?;
            check_secret(one)?;
        }
        check_unique(&plain, &secret)?;
        let total: usize = secret.iter().map(|s| s.value.len()).sum();
        if total > SECRETS_MAX_BYTES {
            return Err(Error::invalid(
                "SECRETS_TOO_LARGE",
                format!(
                    "the secrets have {total} bytes together; at most {SECRETS_MAX_BYTES} are taken"
                ),
            ));
        }
        Ok(Self { plain, secret })
    }

    /// The variables that are no secrets.
    pub(super) fn plain(&self) -> &[(String, String)] {
        &self.plain
    }

    /// The secret variables.
    pub fn secrets(&self) -> &[Secret] {
        &self.secret
    }

    /// `NAME=value` of every variable that the run gets: `base` (image, then sandbox), then the call's own, then its
    /// secrets; a later layer wins. Refused if it cannot be executed together with `argument_bytes`.
    pub fn layered(
        &self,
        base: &[(String, String)],
        argument_bytes: usize,
    ) -> Result<Vec<Vec<u8>>> {
        let call = self.plain.iter().map(|(n, v)| (n.as_str(), v.as_str()));
        let secret = self
            .secret
            .iter()
            .map(|s| (s.name.as_str(), s.value.as_str()));
        let base = base.iter().map(|(n, v)| (n.as_str(), v.as_str()));
        let mut order: Vec<(&str, &str)> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        for (name, value) in base.chain(call).chain(secret) {
            match places.get(name) {
                Some(place) => order[*place].1 = value,
                None => {
                    places.insert(name, order.len());
                    order.push((name, value));
                }
            }
        }
        check_total(&order, argument_bytes)?;
        Ok(order
            .iter()
            .map(|(name, value)| joined(name, value))
            .collect())
    }
}

/// What `strings` cost of [`EXEC_MAX_BYTES`].
pub fn exec_cost<'a>(strings: impl Iterator<Item = &'a str>) -> usize {
    strings.map(|s| s.len() + STRING_OVERHEAD).sum()
}

/// A name of hostile length, for a message.
fn shown(name: &str) -> String {
    let clipped: String = name.chars().take(64).collect();
    format!("{clipped:?}")
}

fn joined(name: &str, value: &str) -> Vec<u8> {
    let mut line = Vec::with_capacity(name.len() + 1 + value.len());
    line.extend_from_slice(name.as_bytes());
    line.push(b'=');
    line.extend_from_slice(value.as_bytes());
    line
}

fn check_variable(name: &str, value: &str) -> Result<()> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err(Error::invalid(
            "INVALID_VARIABLE_NAME",
            format!("not a name of an environment variable: {}", shown(name)),
        )
        .hint("a name is not empty and has no `=` and no NUL"));
    }
    if value.contains('\0') {
        return Err(Error::invalid(
            "INVALID_VARIABLE_VALUE",
            format!("the value of {} has a NUL byte", shown(name)),
        ));
    }
    let bytes = name.len() + value.len();
    if bytes > VARIABLE_MAX_BYTES {
        return Err(Error::invalid(
            "VARIABLE_TOO_LARGE",
            format!(
                "{} has {bytes} bytes with its name; at most {VARIABLE_MAX_BYTES} are taken",
                shown(name)
            ),
        )
        .hint("write long values to a file in the sandbox, or to standard input"));
    }
    Ok(())
}

fn check_secret(secret: &Secret) -> Result<()> {
    if secret.value.len() < SECRET_MIN_BYTES {
        return Err(Error::invalid(
            "SECRET_TOO_SHORT",
            format!(
                "the secret {} has less than {SECRET_MIN_BYTES} bytes",
                shown(&secret.name)
            ),
        )
        .hint("masking so short a value would mangle ordinary output; pass it as an ordinary one: `-e` of lodge, `env` in the API"));
    }
    Ok(())
}

fn check_unique(plain: &[(String, String)], secret: &[Secret]) -> Result<()> {
    let mut seen = std::collections::HashSet::with_capacity(plain.len() + secret.len());
    let names = plain
        .iter()
        .map(|(n, _)| n.as_str())
        .chain(secret.iter().map(|s| s.name.as_str()));
    for name in names {
        if !seen.insert(name) {
            return Err(Error::invalid(
                "DUPLICATE_VARIABLE",
                format!(
                    "{} is given twice, in `env` and `secret_env` together",
                    shown(name)
                ),
            ));
        }
    }
    Ok(())
}

fn check_total(variables: &[(&str, &str)], argument_bytes: usize) -> Result<()> {
    let total = argument_bytes
        + variables
            .iter()
            .map(|(n, v)| n.len() + v.len() + STRING_OVERHEAD)
            .sum::<usize>();
    if total <= EXEC_MAX_BYTES {
        return Ok(());
    }
    let largest = variables
        .iter()
        .max_by_key(|(n, v)| n.len() + v.len())
        .map_or("", |(n, _)| n);
    Err(Error::new(
        ErrorKind::InvalidArgument,
        "ENVIRONMENT_TOO_LARGE",
        format!(
            "arguments and environment need {total} bytes together; the kernel executes at most \
             {EXEC_MAX_BYTES}; the largest variable is {}",
            shown(largest)
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
            .collect()
    }

    fn secret(name: &str, value: &str) -> Secret {
        Secret {
            name: name.to_owned(),
            value: Zeroizing::new(value.to_owned()),
        }
    }

    fn reason(plain: &[(&str, &str)], secrets: Vec<Secret>) -> &'static str {
        CallEnv::new(pairs(plain), secrets)
            .expect_err("must be refused")
            .reason()
    }

    #[test]
    fn hostile_names_and_values_are_refused_by_name() {
        assert_eq!(reason(&[("", "x")], vec![]), "INVALID_VARIABLE_NAME");
        assert_eq!(reason(&[("A=B", "x")], vec![]), "INVALID_VARIABLE_NAME");
        assert_eq!(reason(&[("A\0", "x")], vec![]), "INVALID_VARIABLE_NAME");
        assert_eq!(reason(&[("A", "x\0y")], vec![]), "INVALID_VARIABLE_VALUE");
        assert_eq!(
            reason(&[("A", "1"), ("A", "2")], vec![]),
            "DUPLICATE_VARIABLE"
        );
        assert_eq!(
            reason(&[("A", "1")], vec![secret("A", "long")]),
            "DUPLICATE_VARIABLE"
        );
        assert_eq!(reason(&[], vec![secret("A", "abc")]), "SECRET_TOO_SHORT");
        let big = "x".repeat(VARIABLE_MAX_BYTES);
        let error = CallEnv::new(pairs(&[("BIG", &big)]), vec![]).expect_err("too large");
        assert_eq!(error.reason(), "VARIABLE_TOO_LARGE");
        assert!(error.to_string().contains("BIG"));
        let many: Vec<_> = (0..=VARIABLES_MAX)
            .map(|i| (format!("V{i}"), String::new()))
            .collect();
        assert_eq!(
            CallEnv::new(many, vec![]).expect_err("many").reason(),
            "TOO_MANY_VARIABLES"
        );
    }

    #[test]
    fn newlines_quotes_and_equal_signs_in_values_are_kept() {
        let env = CallEnv::new(pairs(&[("A", "1\n\"'=2")]), vec![]).expect("valid");
        assert_eq!(
            env.layered(&[], 0).expect("fits"),
            vec![b"A=1\n\"'=2".to_vec()]
        );
    }

    #[test]
    fn a_later_layer_wins_and_keeps_the_place() {
        let base = pairs(&[("A", "image"), ("B", "image"), ("A", "sandbox")]);
        let env =
            CallEnv::new(pairs(&[("B", "call")]), vec![secret("C", "secret")]).expect("valid");
        let lines = env.layered(&base, 0).expect("fits");
        assert_eq!(
            lines,
            vec![
                b"A=sandbox".to_vec(),
                b"B=call".to_vec(),
                b"C=secret".to_vec()
            ]
        );
    }

    #[test]
    fn what_cannot_be_executed_is_refused_and_names_the_largest() {
        let value = "x".repeat(100_000);
        let many: Vec<_> = (0..20).map(|i| (format!("V{i}"), value.clone())).collect();
        let env = CallEnv::new(many, vec![]).expect("each is fine");
        let error = env.layered(&[], 0).expect_err("2 MB");
        assert_eq!(error.reason(), "ENVIRONMENT_TOO_LARGE");
        assert!(error.to_string().contains("\"V"));
    }

    #[test]
    fn debug_shows_no_value() {
        let env = CallEnv::new(pairs(&[("A", "plainvalue")]), vec![secret("B", "hushhush")]);
        let text = format!("{:?} {:?}", env, secret("B", "hushhush"));
        assert!(!text.contains("plainvalue") && !text.contains("hushhush"));
    }
}
