//! The default user of an image that names none, and the home of one that is named.
//!
//! /etc/passwd is the image's, so it is read as hostile input: through no link, a regular file, bounded.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustix::fs::{FileType, OFlags, fstat};

use super::ImageError;
use super::oci::RunConfig;
use super::unpack::Tree;

/// The user that agents get where an image has it.
const DEFAULT_USER: &str = "user";
const ROOT: &str = "root";
/// Bytes of /etc/passwd that are read.
const PASSWD_MAX: u64 = 1024 * 1024;

/// Fills in the user (`user` if the image has one, else `root`) and the working directory (that user's home).
/// `layers` are the roots of the image's layers, from the lowest.
pub(super) fn complete(config: &mut RunConfig, layers: &[&Path]) -> Result<(), ImageError> {
    if !config.user.is_empty() && !config.workdir.is_empty() {
        return Ok(());
    }
    let passwd = passwd(layers)?;
    if config.user.is_empty() {
        let known = home_of(&passwd, DEFAULT_USER).is_some();
        config.user = if known { DEFAULT_USER } else { ROOT }.to_owned();
    }
    if config.workdir.is_empty() {
        let name = config.user.split(':').next().unwrap_or_default();
        config.workdir = home_of(&passwd, name).unwrap_or("/").to_owned();
    }
    Ok(())
}

/// The text of /etc/passwd in the uppermost layer that has it; empty if it is missing or no plain file.
fn passwd(layers: &[&Path]) -> Result<String, ImageError> {
    for layer in layers.iter().rev() {
        let tree = Tree::open(layer)?;
        if tree.stat("etc/passwd").is_err() {
            continue;
        }
        // Whatever lies there hides the layers below, a whiteout too. NONBLOCK: a fifo would wait for a writer.
        let Ok(fd) = tree.open_at("etc/passwd", OFlags::RDONLY | OFlags::NONBLOCK) else {
            break;
        };
        if fstat(&fd).is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::RegularFile) {
            let mut text = Vec::new();
            let read = File::from(fd).take(PASSWD_MAX).read_to_end(&mut text);
            read.map_err(|e| ImageError::io("read", "etc/passwd", e))?;
            return Ok(String::from_utf8_lossy(&text).into_owned());
        }
        break;
    }
    Ok(String::new())
}

fn home_of<'a>(passwd: &'a str, user: &str) -> Option<&'a str> {
    passwd.lines().find_map(|line| {
        let fields: Vec<_> = line.splitn(7, ':').collect();
        let [name, _, uid, _, _, home, _] = fields.as_slice() else {
            return None;
        };
        let wanted = *name == user || *uid == user;
        (wanted && home.starts_with('/')).then_some(*home)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_is_found_by_name_and_by_number() {
        let passwd =
            "root:x:0:0:root:/root:/bin/sh\nbad line\nuser:x:1000:1000::/home/user:/bin/sh\n";
        assert_eq!(home_of(passwd, "user"), Some("/home/user"));
        assert_eq!(home_of(passwd, "0"), Some("/root"));
        assert_eq!(home_of(passwd, "nobody"), None);
        assert_eq!(home_of("x:x:0:0::relative:/bin/sh", "x"), None);
    }
}
