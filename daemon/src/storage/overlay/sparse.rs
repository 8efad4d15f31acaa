//! Copying a sparse file: shared blocks where the file system can, else what is written in it and no hole.

use std::fs::File;
use std::io;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// Makes the empty file `to` a copy of `from`. Not synced.
pub(super) fn copy(from: &File, to: &File) -> io::Result<()> {
    match rustix::fs::ioctl_ficlone(to, from) {
        Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::XDEV | Errno::NOTTY | Errno::NOSYS) => {
            copy_data(from, to)
        }
        cloned => Ok(cloned?),
    }
}

fn copy_data(from: &File, to: &File) -> io::Result<()> {
    let end = from.metadata()?.len();
    to.set_len(end)?;
    let mut at = 0;
    while at < end {
        let start = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            // Nothing but a hole from here on.
            Err(Errno::NXIO) => break,
            found => found?,
        };
        at = rustix::fs::seek(from, SeekFrom::Hole(start))?;
        copy_range(from, to, start..at)?;
    }
    Ok(())
}

fn copy_range(from: &File, to: &File, range: std::ops::Range<u64>) -> io::Result<()> {
    let (mut read, mut written) = (range.start, range.start);
    while read < range.end {
        let length = usize::try_from(range.end - read).unwrap_or(usize::MAX);
        let copied =
            rustix::fs::copy_file_range(from, Some(&mut read), to, Some(&mut written), length)?;
        if copied == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt as _, MetadataExt as _};

    use super::*;

    #[test]
    fn a_copy_has_the_content_and_the_holes() {
        const MIB: u64 = 1 << 20;
        let [from, to] = [0, 1].map(|_| tempfile::tempfile().expect("temporary file"));
        from.set_len(64 * MIB).expect("sized");
        for at in [0, 10 * MIB, 40 * MIB + 5] {
            from.write_all_at(b"data", at).expect("written");
        }
        copy_data(&from, &to).expect("copied");
        assert_eq!(to.metadata().expect("stat").len(), 64 * MIB);
        let mut read = [0; 4];
        for at in [0, 10 * MIB, 40 * MIB + 5] {
            to.read_exact_at(&mut read, at).expect("read");
            assert_eq!(&read, b"data");
        }
        to.sync_all().expect("synced");
        assert!(to.metadata().expect("stat").blocks() * 512 < MIB);
    }
}
