//! Tests of the log against real files.

use super::*;

const SMALL: Budget = Budget {
    first: 8192,
    last: 16384,
    step: 4096,
};

fn log_in(dir: &tempfile::TempDir) -> Arc<StreamLog> {
    Arc::new(StreamLog::new(
        &dir.path().join("run"),
        Stream::Stdout,
        SMALL,
    ))
}

/// The byte that belongs at `offset`: never zero, so that a hole cannot pass for data.
fn byte_at(offset: u64) -> u8 {
    u8::try_from(offset % 251).expect("below 251") + 1
}

fn fill(log: &StreamLog, total: u64) {
    let mut at = log.len();
    while at < total {
        let end = total.min(at + 1000);
        let bytes: Vec<u8> = (at..end).map(byte_at).collect();
        log.append(&bytes);
        at = end;
    }
}

async fn read_all(log: &Arc<StreamLog>) -> (u64, Vec<(u64, u64)>) {
    let (mut at, mut data, mut gaps) = (0, 0, Vec::new());
    loop {
        match log.read(at, 777).await.expect("readable") {
            Piece::Data { offset, bytes } => {
                assert_eq!(offset, at);
                assert!(bytes.iter().zip(offset..).all(|(b, o)| *b == byte_at(o)));
                data += bytes.len() as u64;
                at += bytes.len() as u64;
            }
            Piece::Gap { from, to } => {
                assert_eq!(from, at);
                gaps.push((from, to));
                at = to;
            }
            Piece::End => return (data, gaps),
        }
    }
}

#[tokio::test]
async fn a_silent_stream_makes_no_file() {
    let dir = tempfile::tempdir().expect("tempdir");
    let log = log_in(&dir);
    log.seal();
    assert_eq!(log.read(0, 10).await.expect("readable"), Piece::End);
    assert!(!dir.path().join("run").exists());
}

#[tokio::test]
async fn what_fits_is_kept_whole() {
    let dir = tempfile::tempdir().expect("tempdir");
    let log = log_in(&dir);
    fill(&log, 20_000);
    assert_eq!(read_all(&log).await, (20_000, vec![]));
    log.seal();
    assert_eq!(read_all(&log).await, (20_000, vec![]));
}

#[tokio::test]
async fn the_middle_of_a_flood_is_a_gap_and_frees_its_blocks() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().expect("tempdir");
    let log = log_in(&dir);
    fill(&log, 1_000_000);
    let (data, gaps) = read_all(&log).await;
    let [(from, to)] = gaps[..] else {
        panic!("one gap, not {gaps:?}")
    };
    assert_eq!(from, SMALL.first);
    assert_eq!(data + (to - from), 1_000_000);
    assert!((SMALL.last..SMALL.last + SMALL.step + PAGE).contains(&(1_000_000 - to)));
    let blocks = std::fs::metadata(dir.path().join("run/stdout"))
        .expect("exists")
        .blocks();
    assert!(blocks * 512 < 64 * 1024, "{blocks} blocks are still there");
}

#[tokio::test]
async fn a_reopened_log_goes_on_at_its_length_and_knows_its_hole() {
    let dir = tempfile::tempdir().expect("tempdir");
    let log = log_in(&dir);
    fill(&log, 500_000);
    let before = read_all(&log).await;
    drop(log);
    let again = StreamLog::reopen(&dir.path().join("run"), Stream::Stdout, SMALL).expect("reopens");
    let again = Arc::new(again);
    assert_eq!(again.len(), 500_000);
    assert_eq!(read_all(&again).await, before);
    fill(&again, 600_000);
    assert_eq!(read_all(&again).await.1.len(), 1);
}

#[tokio::test]
async fn where_no_file_can_be_made_bytes_are_counted_and_shown_as_a_gap() {
    let dir = tempfile::tempdir().expect("tempdir");
    std::fs::write(dir.path().join("run"), b"in the way").expect("writes");
    let log = log_in(&dir);
    fill(&log, 3_000);
    assert_eq!(read_all(&log).await, (0, vec![(0, 3_000)]));
    assert_eq!(log.loss(), Some((0, Errno::ENOTDIR)));
}

#[tokio::test]
async fn a_reopened_log_that_lost_bytes_stores_no_others_in_their_place() {
    let dir = tempfile::tempdir().expect("tempdir");
    let log = log_in(&dir);
    fill(&log, 3_000);
    log.lose(Errno::ENOSPC);
    fill(&log, 4_000);
    assert_eq!(read_all(&log).await, (3_000, vec![(3_000, 4_000)]));
    drop(log);
    let again = StreamLog::reopen(&dir.path().join("run"), Stream::Stdout, SMALL).expect("reopens");
    let again = Arc::new(again);
    assert_eq!(again.loss().map(|(from, _)| from), Some(3_000));
    again.append(b"not the bytes that were lost");
    assert_eq!(read_all(&again).await, (3_000, vec![(3_000, 3_028)]));
}

#[tokio::test]
async fn a_follower_holds_the_writer_only_while_it_moves() {
    let dir = tempfile::tempdir().expect("tempdir");
    let log = log_in(&dir);
    let mut follower = Follower::new(Arc::clone(&log), 0);
    assert_eq!(log.headroom(), Headroom::Bytes(4 << 20));
    let chunk = vec![1u8; 4 << 20];
    log.append(&chunk);
    assert!(matches!(log.headroom(), Headroom::HeldUntil(_)));
    follower.advance(1000);
    assert_eq!(log.headroom(), Headroom::Bytes(1000));
    log.append(&chunk);
    drop(follower);
    assert_eq!(log.headroom(), Headroom::Bytes(4 << 20));
}

#[tokio::test]
async fn a_follower_that_stands_still_is_no_longer_waited_for_and_gets_a_gap() {
    let dir = tempfile::tempdir().expect("tempdir");
    let log = log_in(&dir);
    let mut follower = Follower::new(Arc::clone(&log), 0);
    fill(&log, 5 << 20);
    assert!(matches!(log.headroom(), Headroom::HeldUntil(_)));
    log.lock().followers[0].since -= std::time::Duration::from_secs(31);
    assert_eq!(log.headroom(), Headroom::Bytes(4 << 20));
    follower.advance(SMALL.first);
    let Piece::Gap { from, to } = follower.next(100).await.expect("readable") else {
        panic!("gap expected")
    };
    assert_eq!(from, SMALL.first);
    follower.advance(to);
    assert!(matches!(
        follower.next(100).await.expect("readable"),
        Piece::Data { .. }
    ));
}

#[tokio::test]
async fn a_follower_is_woken_by_bytes_and_by_the_end() {
    let dir = tempfile::tempdir().expect("tempdir");
    let log = log_in(&dir);
    let mut follower = Follower::new(Arc::clone(&log), 0);
    let writer = Arc::clone(&log);
    let task = tokio::spawn(async move {
        follower.ready().await;
        let Piece::Data { bytes, .. } = follower.next(100).await.expect("readable") else {
            panic!("data expected")
        };
        follower.advance(bytes.len() as u64);
        follower.ready().await;
        (bytes, follower.next(100).await.expect("readable"))
    });
    tokio::task::yield_now().await;
    writer.append(b"hello");
    tokio::task::yield_now().await;
    writer.seal();
    let (bytes, end) = task.await.expect("no panic");
    assert_eq!((&bytes[..], end), (&b"hello"[..], Piece::End));
}

#[tokio::test]
async fn a_pinned_log_is_readable_without_its_path_and_closed_with_the_last_pin() {
    let dir = tempfile::tempdir().expect("tempdir");
    let log = log_in(&dir);
    let pins = (log.pin(), Follower::new(Arc::clone(&log), 0));
    log.append(b"owed");
    log.seal();
    std::fs::remove_dir_all(dir.path().join("run")).expect("removed");
    let Piece::Data { bytes, .. } = log.read(0, 100).await.expect("readable") else {
        panic!("data expected")
    };
    assert_eq!(&bytes[..], b"owed");
    drop(pins.0);
    assert!(log.lock().file.is_some());
    drop(pins.1);
    assert!(log.lock().file.is_none());
}
