//! Logs of ended runs as they lie on disk, and what there is of any log. A log at rest costs no descriptor: each read
//! opens the file.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::errno::Errno;

use super::{BUDGET, Lost, MODE_LOST, Stream, StreamLog, found_hole};
use crate::exec::entry::Extent;

impl StreamLog {
    /// The log of an ended run, of which `told` was there when it ended. What came later is found in the file; what is no
    /// longer in it, or not there at all, is a gap. Blocks.
    pub(in crate::exec) fn at_rest(run_dir: &Path, stream: Stream, told: Extent) -> Self {
        let log = Self::new(run_dir, stream, BUDGET);
        {
            let mut state = log.lock();
            state.sealed = true;
            state.len = told.total;
            match File::open(&log.path).and_then(|file| Ok((file.metadata()?, file))) {
                Ok((metadata, file)) => {
                    let stored = metadata.len();
                    state.len = state.len.max(stored);
                    state.hole = found_hole(&file, BUDGET.first, stored);
                    if stored < state.len || metadata.mode() & 0o777 == MODE_LOST {
                        state.lost = Some(lost_from(stored));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound && state.len == 0 => {}
                Err(_) => state.lost = Some(lost_from(0)),
            }
        }
        log
    }

    /// What there is of it. Where bytes are missing in two places, all that lies between them counts as missing.
    pub(in crate::exec) fn extent(&self) -> Extent {
        let state = self.lock();
        let hole = Some(&state.hole).filter(|hole| !hole.is_empty());
        let lost = state
            .lost
            .map(|lost| lost.from)
            .filter(|from| *from < state.len);
        let from = hole.map(|hole| hole.start).into_iter().chain(lost).min();
        let to = lost.map(|_| state.len).or(hole.map(|hole| hole.end));
        Extent {
            total: state.len,
            gap_from: from.unwrap_or(0),
            gap_to: to.unwrap_or(0),
        }
    }
}

/// Why is known no more.
fn lost_from(from: u64) -> Lost {
    Lost {
        from,
        errno: Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Budget, Piece};
    use super::*;

    const SMALL: Budget = Budget {
        first: 8 << 20,
        last: 1 << 20,
        step: 1 << 20,
    };

    #[tokio::test]
    async fn a_log_at_rest_is_the_one_that_was_written() {
        let dir = tempfile::tempdir().expect("tempdir");
        let run = dir.path().join("run");
        let log = StreamLog::new(&run, Stream::Stdout, SMALL);
        (0..12).for_each(|n| log.append(&vec![n; 1 << 20]));
        log.seal();
        let told = log.extent();
        assert_eq!(
            (told.total, told.gap_from, told.gap_to),
            (12 << 20, 8 << 20, 11 << 20)
        );
        let rest = Arc::new(StreamLog::at_rest(&run, Stream::Stdout, told));
        assert_eq!(rest.extent(), told);
        let first = rest.read(7 << 20, 10).await.expect("readable");
        assert_eq!(
            first,
            Piece::Data {
                offset: 7 << 20,
                bytes: vec![7; 10].into()
            }
        );
        let gap = rest.read(9 << 20, 10).await.expect("readable");
        assert_eq!(
            gap,
            Piece::Gap {
                from: 9 << 20,
                to: 11 << 20
            }
        );
        assert_eq!(rest.read(12 << 20, 10).await.expect("readable"), Piece::End);
    }

    #[tokio::test]
    async fn what_is_gone_from_the_disk_is_a_gap_before_and_after_it_was_opened() {
        let dir = tempfile::tempdir().expect("tempdir");
        let run = dir.path().join("run");
        let log = StreamLog::new(&run, Stream::Stderr, SMALL);
        log.append(b"hello");
        let told = log.extent();
        let rest = Arc::new(StreamLog::at_rest(&run, Stream::Stderr, told));
        std::fs::remove_dir_all(&run).expect("removed");
        assert_eq!(
            rest.read(1, 10).await.expect("no fault"),
            Piece::Gap { from: 1, to: 5 }
        );
        let later = StreamLog::at_rest(&run, Stream::Stderr, told);
        let extent = later.extent();
        assert_eq!((extent.total, extent.gap_from, extent.gap_to), (5, 0, 5));
        let silent = StreamLog::at_rest(&run, Stream::Stdout, Extent::default());
        assert_eq!(silent.extent(), Extent::default());
    }

    #[test]
    fn a_log_that_lost_its_end_is_as_long_as_it_was() {
        let dir = tempfile::tempdir().expect("tempdir");
        let log = StreamLog::new(dir.path(), Stream::Stdout, SMALL);
        log.append(b"stored");
        log.lose(Errno::ENOSPC);
        log.append(b"not stored");
        let told = log.extent();
        assert_eq!((told.total, told.gap_from, told.gap_to), (16, 6, 16));
        assert_eq!(
            StreamLog::at_rest(dir.path(), Stream::Stdout, told).extent(),
            told
        );
    }
}
