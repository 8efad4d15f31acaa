//! The books of a table: what is written, kept in memory, written again and read by the next daemon.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;

use super::*;
use crate::exec::entry::Extent;
use crate::exec::entry::tests::{begun, ended};
use crate::exec::requests::{Key, Request};
use crate::exec::retention::Retention;

struct Node {
    dir: TempDir,
    key: Key,
}

impl Node {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().expect("tempdir"),
            key: Key::random(),
        }
    }

    /// A table as the next daemon has it.
    fn table(&self) -> (RunTable, Arc<Retention>) {
        let retention = Arc::new(Retention::new(u64::MAX, self.key.clone()));
        let table = RunTable::default();
        table.recall(self.dir.path(), &retention);
        table.taken_up();
        (table, retention)
    }

    fn request(&self, id: &str, body: &str) -> (Request, u64) {
        let request = Request {
            id: id.to_owned(),
            body: body.to_owned(),
        };
        (request, self.key.number(id))
    }
}

/// A log of five bytes, as `ended` says.
fn write_log(dir: &Path, run: &RunId) {
    let dir = dir.join(run.as_str());
    fs::create_dir(&dir).expect("made");
    fs::write(dir.join("stdout"), "hello").expect("written");
}

async fn code(table: &RunTable, run: &RunId) -> i32 {
    let run = table.find(run).await.expect("it is known");
    run.end().await.expect("it has ended").verdict.exit_code
}

#[tokio::test]
async fn what_is_written_is_read_by_the_next_daemon() {
    let node = Node::new();
    let (table, retention) = node.table();
    let one = ended(begun(None), 3);
    let id = one.begun.run.clone();
    write_log(node.dir.path(), &id);
    table.record_settled(one.clone());
    assert_eq!(code(&table, &id).await, 3);
    assert_eq!(retention.settled_bytes(), 8192);
    let (next, retention) = node.table();
    assert_eq!(code(&next, &id).await, 3);
    assert_eq!(retention.settled_bytes(), 8192);
    next.0.remove_oldest_logs();
    assert_eq!(retention.settled_bytes(), 0);
    let account = next.find(&id).await.expect("its result stays").account();
    let gone = Extent {
        total: 5,
        gap_from: 0,
        gap_to: 5,
    };
    assert_eq!((account.stdout, account.command), (gone, one.begun.command));
}

#[tokio::test]
async fn what_cannot_be_written_is_in_memory_until_it_can() {
    let node = Node::new();
    let (table, _) = node.table();
    // Nothing can be written where a directory lies.
    let journal = node.dir.path().join("journal");
    fs::create_dir(&journal).expect("made");
    let one = ended(begun(None), 3);
    let id = one.begun.run.clone();
    table.record_settled(one);
    assert_eq!(code(&table, &id).await, 3);
    table.0.put_on_disk();
    assert!(node.table().0.find(&id).await.is_err());
    fs::remove_dir(&journal).expect("empty");
    table.0.put_on_disk();
    assert_eq!(code(&table, &id).await, 3);
    assert_eq!(code(&node.table().0, &id).await, 3);
    assert!(table.lock().unwritten.is_empty());
}

#[tokio::test]
async fn a_thousand_are_kept_and_the_journal_stays_short() {
    let node = Node::new();
    let (table, retention) = node.table();
    let mut ids = Vec::new();
    for exit_code in 0..3_200 {
        let mut one = ended(begun(None), exit_code % 100);
        (one.stdout, one.stderr) = (Extent::default(), Extent::default());
        ids.push(one.begun.run.clone());
        table.record_settled(one);
    }
    let lines = || {
        fs::read_to_string(node.dir.path().join("journal"))
            .expect("text")
            .lines()
            .count()
    };
    assert!(lines() <= 2 * 1_000 + 65, "{} lines", lines());
    assert_eq!((table.kept_count(), retention.settled_bytes()), (1_000, 0));
    let (next, _) = node.table();
    for table in [&table, &next] {
        assert!(table.find(&ids[2_199]).await.is_err());
        for place in [2_200, 2_700, 3_199] {
            assert_eq!(
                code(table, &ids[place]).await,
                i32::try_from(place % 100).expect("small")
            );
        }
    }
}

#[tokio::test]
async fn a_claim_that_is_dropped_leaves_nothing_behind() {
    let node = Node::new();
    let (table, _) = node.table();
    let (request, number) = node.request("r", "body");
    let claimed = table.claim(request.clone(), number).await.expect("free");
    let Claimed::New(mut claim) = claimed else {
        panic!("nobody has it");
    };
    let begun = begun(Some(request.clone()));
    claim.begin(begun.clone()).await;
    assert_eq!(node.table().0.take_open().len(), 1);
    let waiting = tokio::spawn({
        let (table, request) = (table.clone(), request.clone());
        async move {
            table
                .claim(request, number)
                .await
                .is_ok_and(|claimed| matches!(claimed, Claimed::New(_)))
        }
    });
    tokio::task::yield_now().await;
    drop(claim);
    assert!(waiting.await.expect("no panic"), "who waited has it now");
    for _ in 0..1_000 {
        if node.table().0.take_open().is_empty() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the run that was not started is still open");
}

#[tokio::test]
async fn a_name_of_the_history_is_not_given_again() {
    let node = Node::new();
    let (request, number) = node.request("r", "body");
    let one = ended(begun(Some(request.clone())), 4);
    let id = one.begun.run.clone();
    node.table().0.record_settled(one);
    let (next, _) = node.table();
    match next.claim(request, number).await.expect("known") {
        Claimed::Earlier(run) => assert_eq!(run.id(), &id),
        Claimed::New(_) => panic!("it would run twice"),
    }
    let (other, number) = node.request("r", "another body");
    let refused = next.claim(other, number).await.err().expect("refused");
    assert_eq!(refused.reason(), "REQUEST_ID_REUSED");
    let (free, number) = node.request("s", "body");
    assert!(matches!(
        next.claim(free, number).await,
        Ok(Claimed::New(_))
    ));
}

#[tokio::test]
async fn a_name_whose_run_nobody_can_tell_of_is_not_given_again() {
    let node = Node::new();
    let (request, number) = node.request("r", "body");
    let (table, _) = node.table();
    let Ok(Claimed::New(mut claim)) = table.claim(request.clone(), number).await else {
        panic!("nobody has it");
    };
    let begun = begun(Some(request.clone()));
    claim.begin(begun.clone()).await;
    let (next, _) = node.table();
    let refused = next.claim(request, number).await.err().expect("refused");
    assert_eq!(refused.reason(), "RUN_UNREACHABLE");
    let unknown = next.find(&begun.run).await.err().expect("no answer");
    assert_eq!(unknown.reason(), "RUN_UNREACHABLE");
}
