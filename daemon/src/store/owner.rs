//! What tells this state directory from every other one: a random word in a file of its own. What is made outside of it carries the
//! word, so that a daemon on another directory (or on an empty one, because a disk was not mounted) never takes it for its own.

use std::fs;
use std::io;
use std::path::Path;

use super::directories::StoreError;
use super::replacement::replace_file;

const FILE: &str = "owner";
/// Random bytes in a word.
const BYTES: usize = 16;

/// The word of a state directory; made at the first start. The caller holds the [`super::StateLock`]. One that cannot be
/// read or kept is made anew: what carries the old one is then nobody's, and stays.
///
/// # Errors
/// Where the system gives no random bytes.
pub fn owner(state_dir: &Path) -> Result<String, StoreError> {
    let path = state_dir.join(FILE);
    let kept = fs::read_to_string(&path).unwrap_or_default();
    if is_word(kept.trim()) {
        return Ok(kept.trim().to_owned());
    }
    let mut random = [0; BYTES];
    getrandom::fill(&mut random).map_err(|error| {
        StoreError::io(
            "make a word for",
            &path,
            io::Error::other(error.to_string()),
        )
    })?;
    let word = hex::encode(random);
    if let Err(error) = replace_file(&path, word.as_bytes()) {
        tracing::warn!(%error, path = %path.display(), "what is made from now on will not be known for ours after a restart");
    }
    Ok(word)
}

fn is_word(text: &str) -> bool {
    text.len() == 2 * BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_keeps_its_word_and_no_other_has_it() {
        let (one, other) = (tempfile::tempdir(), tempfile::tempdir());
        let (one, other) = (one.expect("a directory"), other.expect("a directory"));
        let word = owner(one.path()).expect("made");
        assert_eq!(owner(one.path()).expect("read"), word);
        assert_ne!(owner(other.path()).expect("made"), word);
        fs::write(one.path().join(FILE), "").expect("truncated");
        assert_ne!(owner(one.path()).expect("made anew"), word);
    }
}
