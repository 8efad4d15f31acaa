//! `NAME=VALUE`, as variables and labels are given.

/// Reads it. The value may be empty, the name not.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write NAME=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_has_a_name_and_may_have_an_empty_value() {
        assert_eq!(pair("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert_eq!(pair("a="), Ok(("a".into(), String::new())));
        for text in ["", "a", "=b"] {
            assert!(pair(text).is_err(), "{text}");
        }
    }
}
