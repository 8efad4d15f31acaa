//! The secrets of a run in a memfd that the holder keeps: the next daemon needs them to go on masking.
//!
//! Never on a disk; wiped when the run has ended.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};
use zeroize::Zeroizing;

use super::environment::{CallEnv, Secret};

/// Most bytes that a memfd of ours holds: names are at most as long as `VARIABLE_MAX_BYTES`, but all of them were executed
/// once, so this is far above.
const MEMFD_MAX_BYTES: u64 = 4 << 20;

/// What precedes a secret: the lengths of its name and its value.
const LENGTHS_BYTES: usize = 8;

/// What a holder kept.
#[derive(Debug)]
pub(super) enum Kept {
    /// The secrets of a run that is not concluded.
    Secrets(Vec<Secret>),
    /// Nothing any more: [`wipe`] came last of what is done with the run's output.
    Wiped,
}

/// Writes secrets: per secret the lengths of name and value as little-endian u32, then both.
pub(super) fn write(secrets: &[Secret]) -> io::Result<OwnedFd> {
    // At its full size at once: a vector that grows leaves copies behind that nobody wipes.
    let size = |one: &Secret| LENGTHS_BYTES + one.name.len() + one.value.len();
    let mut bytes = Zeroizing::new(Vec::with_capacity(secrets.iter().map(size).sum()));
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
pub(super) fn read(fd: OwnedFd) -> io::Result<Kept> {
    let file = regular_file(fd)?;
    let length = file.metadata()?.len();
    if length == 0 || length > MEMFD_MAX_BYTES {
        return Err(malformed());
    }
    let mut bytes = Zeroizing::new(vec![0; usize::try_from(length).map_err(io::Error::other)?]);
    file.read_exact_at(&mut bytes, 0)?;
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(Kept::Wiped);
    }
    let mut rest: &[u8] = &bytes;
    let mut secrets = Vec::new();
    while !rest.is_empty() {
        let (name, value) = (take_length(&mut rest)?, take_length(&mut rest)?);
        secrets.push(Secret {
            name: take_text(&mut rest, name)?,
            value: take_text(&mut rest, value)?.into(),
        });
    }
    let checked = CallEnv::new(Vec::new(), secrets).map_err(|_| malformed())?;
    Ok(Kept::Secrets(checked.secrets().to_vec()))
}

/// A descriptor from a holder, if it is a file: reading anything else may block for ever, and its length means nothing.
pub(super) fn regular_file(fd: OwnedFd) -> io::Result<File> {
    let file = File::from(fd);
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(malformed())
    }
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
    io::Error::new(io::ErrorKind::InvalidData, "not what was kept for a run")
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::sys::signal::SigSet;
    use nix::sys::signalfd::SignalFd;

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
        let kept = || fd.try_clone().expect("dup");
        let Kept::Secrets(read_back) = read(kept()).expect("well-formed") else {
            panic!("they are not wiped yet")
        };
        let pairs: Vec<_> = read_back
            .iter()
            .map(|s| (s.name.as_str(), s.value.as_str()))
            .collect();
        assert_eq!(pairs, [("A", "one\n"), ("LONGER_NAME", "tw«o")]);
        wipe(&kept()).expect("wiped");
        assert!(matches!(read(kept()), Ok(Kept::Wiped)));
    }

    fn holding(bytes: &[u8]) -> OwnedFd {
        let mut file = File::from(memfd_create(c"test", MFdFlags::MFD_CLOEXEC).expect("memfd"));
        file.write_all(bytes).expect("written");
        file.into()
    }

    #[test]
    fn what_is_malformed_is_refused() {
        assert!(read(holding(&[255; 20])).is_err());
        assert!(read(holding(&[])).is_err());
        let empty_value = write(&[secret("A", "")]).expect("memfd");
        assert!(read(empty_value).is_err());
        let twice = write(&[secret("A", "four"), secret("A", "four")]).expect("memfd");
        assert!(read(twice).is_err());
    }

    #[test]
    fn what_is_no_file_or_has_no_end_is_refused_without_being_read() {
        let never_ready = SignalFd::new(&SigSet::empty()).expect("signalfd");
        let never_ready = never_ready.as_fd().try_clone_to_owned().expect("dup");
        assert!(read(never_ready).is_err());
        let huge = File::from(holding(b"x"));
        huge.set_len(1 << 40).expect("sparse");
        assert!(read(huge.into()).is_err());
    }
}
