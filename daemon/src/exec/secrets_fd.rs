//! The secrets of a run in a memfd that the holder keeps: the next daemon needs them to go on masking.
//!
//! Never on a disk; wiped when the run has ended.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};
use zeroize::Zeroizing;

use super::environment::{SECRETS_MAX_BYTES, Secret, VARIABLES_MAX};

/// Most bytes that a memfd of ours holds: names are at most as long as `VARIABLE_MAX_BYTES`, but all of them were executed
/// once, so this is far above.
const MEMFD_MAX_BYTES: u64 = 4 << 20;

/// Writes secrets: per secret the lengths of name and value as little-endian u32, then both.
pub(super) fn write(secrets: &[Secret]) -> io::Result<OwnedFd> {
    let mut bytes = Zeroizing::new(Vec::new());
    for secret in secrets {
        bytes.extend_from_slice(&length(&secret.name)?);
        bytes.extend_from_slice(&length(&secret.value)?);
        bytes.extend_from_slice(secret.name.as_bytes());
        bytes.extend_from_slice(secret.value.as_bytes());
    }
    let mut file = File::from(memfd_create(c"lodge-secrets", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(&bytes)?;
    Ok(file.into())
}

/// Reads what [`write()`] wrote. It was in a holder's hands: checked like any input.
pub(super) fn read(fd: OwnedFd) -> io::Result<Vec<Secret>> {
    let mut file = File::from(fd);
    file.rewind()?;
    let mut bytes = Zeroizing::new(Vec::new());
    file.take(MEMFD_MAX_BYTES).read_to_end(&mut bytes)?;
    let mut rest: &[u8] = &bytes;
    let mut secrets = Vec::new();
    let mut total = 0;
    while !rest.is_empty() {
        let (name, value) = (take_length(&mut rest)?, take_length(&mut rest)?);
        let secret = Secret {
            name: take_text(&mut rest, name)?,
            value: take_text(&mut rest, value)?.into(),
        };
        total += secret.value.len();
        secrets.push(secret);
        if total > SECRETS_MAX_BYTES || secrets.len() > VARIABLES_MAX {
            return Err(malformed());
        }
    }
    Ok(secrets)
}

/// Frees what a memfd holds, in every process that has it open.
pub(super) fn wipe(fd: &OwnedFd) -> io::Result<()> {
    let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    Ok(fallocate(fd, mode, 0, MEMFD_MAX_BYTES.cast_signed())?)
}

fn length(text: &str) -> io::Result<[u8; 4]> {
    Ok(u32::try_from(text.len())
        .map_err(io::Error::other)?
        .to_le_bytes())
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> io::Result<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(count).ok_or_else(malformed)?;
    *rest = left;
    Ok(taken)
}

fn take_length(rest: &mut &[u8]) -> io::Result<usize> {
    let bytes = take(rest, 4)?.try_into().map_err(io::Error::other)?;
    usize::try_from(u32::from_le_bytes(bytes)).map_err(io::Error::other)
}

fn take_text(rest: &mut &[u8], count: usize) -> io::Result<String> {
    let text = std::str::from_utf8(take(rest, count)?).map_err(|_| malformed())?;
    Ok(text.to_owned())
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not the secrets of a run")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(name: &str, value: &str) -> Secret {
        Secret {
            name: name.to_owned(),
            value: Zeroizing::new(value.to_owned()),
        }
    }

    #[test]
    fn secrets_come_back_and_can_be_wiped() {
        let fd = write(&[secret("A", "one\n"), secret("LONGER_NAME", "tw«o")]).expect("memfd");
        let kept = fd.try_clone().expect("dup");
        let read_back = read(fd).expect("well-formed");
        let pairs: Vec<_> = read_back
            .iter()
            .map(|s| (s.name.as_str(), s.value.as_str()))
            .collect();
        assert_eq!(pairs, [("A", "one\n"), ("LONGER_NAME", "tw«o")]);
        wipe(&kept).expect("wiped");
        let mut file = File::from(kept);
        let mut bytes = Vec::new();
        file.rewind().expect("seek");
        file.read_to_end(&mut bytes).expect("reads");
        assert!(!bytes.is_empty() && bytes.iter().all(|b| *b == 0));
    }

    #[test]
    fn what_is_malformed_is_refused() {
        let mut file = File::from(memfd_create(c"test", MFdFlags::MFD_CLOEXEC).expect("memfd"));
        file.write_all(&[255; 20]).expect("written");
        assert!(read(file.into()).is_err());
    }
}
