//! The journal against what a crash, a disk and other versions leave.

use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use super::super::age::Stamp;
use super::super::entry::tests::{begun, ended};
use super::*;

fn journal() -> (TempDir, Journal) {
    let dir = tempfile::tempdir().expect("tempdir");
    let journal = Journal::new(dir.path());
    (dir, journal)
}

fn again(dir: &TempDir) -> (Journal, Told) {
    let mut journal = Journal::new(dir.path());
    let told = journal.load().expect("readable");
    (journal, told)
}

fn ended_line(exit_code: i32) -> (RunId, Line) {
    let ended = ended(begun(None), exit_code);
    (ended.begun.run.clone(), Line::Ended(Box::new(ended)))
}

fn ids(told: &Told) -> Vec<RunId> {
    told.ended
        .iter()
        .map(|(one, _)| one.begun.run.clone())
        .collect()
}

fn add(dir: &TempDir, bytes: &[u8]) {
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(dir.path().join(FILE))
        .expect("a file");
    file.write_all(bytes).expect("written");
}

fn compact(journal: &mut Journal, kept: &[Place], open: Vec<Begun>) -> Option<Moved> {
    let mut rewrite = journal.rewrite(open).expect("readable")?;
    rewrite.write(kept.to_vec()).expect("written");
    journal.replace(rewrite).expect("replaced")
}

#[test]
fn a_journal_that_is_not_there_is_empty() {
    let (dir, _) = journal();
    let (_, told) = again(&dir);
    assert!(told.ended.is_empty() && told.open.is_empty());
    assert!(!dir.path().join(FILE).exists());
}

#[test]
fn the_last_word_on_a_run_counts_and_its_place_is_where_it_is_read() {
    let (dir, mut journal) = journal();
    let one = ended(begun(None), 1);
    let (other, line) = ended_line(2);
    journal
        .append(&Line::Ended(Box::new(one.clone())))
        .expect("written");
    journal.append(&line).expect("written");
    let mut later = one.clone();
    later.stdout.total = 99;
    let place = journal
        .append(&Line::Ended(Box::new(later.clone())))
        .expect("written");
    let (journal, told) = again(&dir);
    assert_eq!(ids(&told), [other, one.begun.run]);
    assert_eq!(told.ended[1], (later.clone(), place));
    assert_eq!(journal.read(&[place]).expect("readable"), [Some(later)]);
}

#[test]
fn runs_without_an_end_are_open_unless_they_are_void() {
    let (dir, mut journal) = journal();
    let [first, second, third, late] = std::array::from_fn(|_| begun(None));
    journal
        .append(&Line::Ended(Box::new(ended(late.clone(), 0))))
        .expect("written");
    for one in [&first, &second] {
        journal
            .append(&Line::Started(one.clone()))
            .expect("written");
    }
    journal.append(&Line::Void(second.run)).expect("written");
    journal
        .append(&Line::Stopping(Stamp::now()))
        .expect("written");
    assert!(again(&dir).0.is_stopping());
    // Written by a thread of its own, and so after the end.
    for one in [&third, &late] {
        journal
            .append(&Line::Started(one.clone()))
            .expect("written");
    }
    let (journal, told) = again(&dir);
    let open: Vec<_> = told
        .open
        .iter()
        .map(|one| (one.begun.clone(), one.stopping))
        .collect();
    assert_eq!(open, [(first, true), (third, false)]);
    assert!(!journal.is_stopping());
}

#[test]
fn a_torn_end_hides_no_line_before_or_after_it() {
    let (id, line) = ended_line(3);
    let whole = line.encode();
    for cut in 1..whole.len() {
        let (dir, mut journal) = journal();
        let (before, line) = ended_line(0);
        journal.append(&line).expect("written");
        add(&dir, &whole[..cut]);
        let (mut journal, told) = again(&dir);
        assert!(ids(&told).starts_with(std::slice::from_ref(&before)));
        let (after, line) = ended_line(0);
        let place = journal.append(&line).expect("written");
        let (_, told) = again(&dir);
        let expected = if cut == whole.len() - 1 {
            vec![before, id.clone(), after.clone()]
        } else {
            vec![before, after.clone()]
        };
        assert_eq!(ids(&told), expected, "cut at {cut}");
        assert_eq!(told.ended.last().map(|(_, place)| *place), Some(place));
    }
}

#[test]
fn zeros_noise_and_endless_lines_are_skipped() {
    let (dir, mut journal) = journal();
    let mut expected = Vec::new();
    let noise: Vec<Vec<u8>> = vec![
        vec![0; 5000],
        vec![0xff; LINE_MAX],
        vec![b'x'; 3 * LINE_MAX + 7],
        b"\n\n\n".to_vec(),
        b"{\"v\":1}".to_vec(),
        vec![],
    ];
    for noise in &noise {
        let (id, line) = ended_line(0);
        journal.append(&line).expect("written");
        expected.push(id);
        add(&dir, noise);
        add(&dir, b"\n");
    }
    let (journal, told) = again(&dir);
    assert_eq!(ids(&told), expected);
    assert_eq!((journal.damaged, journal.later), (9, 0));
}

#[test]
fn compaction_keeps_what_is_of_use_and_a_copy_of_what_is_damaged() {
    let (dir, mut journal) = journal();
    let mut places = Vec::new();
    for exit_code in 0..100 {
        places.push(journal.append(&ended_line(exit_code).1).expect("written"));
    }
    add(&dir, b"damage\n");
    let before = fs::read(dir.path().join(FILE)).expect("readable");
    let (mut journal, told) = again(&dir);
    assert!(journal.is_bloated(10) && !journal.is_bloated(50));
    let live = begun(None);
    let kept = &places[90..];
    let moved = compact(&mut journal, kept, vec![live.clone()]).expect("moved");
    assert_eq!(moved.to(places[0]), None);
    let moved: Vec<Place> = kept
        .iter()
        .map(|place| moved.to(*place).expect("kept"))
        .collect();
    let read = journal.read(&moved).expect("readable");
    let expected: Vec<_> = told.ended[90..]
        .iter()
        .map(|(one, _)| Some(one.clone()))
        .collect();
    assert_eq!(read, expected);
    let copy = fs::read(dir.path().join("journal.damaged-1")).expect("a copy");
    assert!(copy == before, "the copy is the file as it was");
    let (mut journal, told) = again(&dir);
    assert_eq!((told.ended.len(), journal.damaged), (10, 0));
    assert_eq!(told.open[0].begun, live);
    let moved: Vec<Place> = told.ended.iter().map(|(_, place)| *place).collect();
    compact(&mut journal, &moved, Vec::new()).expect("moved");
    assert!(
        !dir.path().join("journal.damaged-2").exists(),
        "a whole file is not copied"
    );
}

#[test]
fn lines_that_are_added_while_it_is_written_anew_are_carried_over() {
    let (dir, mut journal) = journal();
    let places = [0, 1, 2].map(|code| journal.append(&ended_line(code).1).expect("written"));
    let live = begun(None);
    let mut rewrite = journal
        .rewrite(vec![live.clone()])
        .expect("readable")
        .expect("it may be");
    rewrite.write(places[1..].to_vec()).expect("written");
    let late = ended(live, 3);
    let added = journal
        .append(&Line::Ended(Box::new(late.clone())))
        .expect("written");
    let (last_id, last) = ended_line(4);
    let last = journal.append(&last).expect("written");
    let moved = journal
        .replace(rewrite)
        .expect("replaced")
        .expect("it may be");
    let read = [added, last].map(|place| moved.to(place).expect("carried over"));
    let read = journal.read(&read).expect("readable");
    assert_eq!(read[0].as_ref(), Some(&late));
    assert_eq!(read[1].as_ref().map(|one| &one.begun.run), Some(&last_id));
    assert_eq!(journal.lines, 5, "two kept, one open, two added");
    let (_, told) = again(&dir);
    assert_eq!((told.ended.len(), told.open.len()), (4, 0));
}

#[test]
fn a_journal_with_lines_of_a_later_version_is_not_written_anew() {
    let (dir, mut journal) = journal();
    let place = journal.append(&ended_line(0).1).expect("written");
    let later = br#"{"v":3,"event":{"dreamt":1}}"#;
    let sum = hex::encode(&Sha256::digest(later)[..8]);
    add(&dir, &[sum.as_bytes(), b" ", later, b"\n"].concat());
    let (mut journal, told) = again(&dir);
    assert_eq!((told.ended.len(), journal.later), (1, 1));
    let before = fs::read(dir.path().join(FILE)).expect("readable");
    assert!(compact(&mut journal, &[place], Vec::new()).is_none());
    assert!(fs::read(dir.path().join(FILE)).expect("readable") == before);
    journal
        .append(&ended_line(0).1)
        .expect("it can be added to");
}

#[test]
fn copies_are_bounded_and_then_nothing_is_overwritten() {
    let (dir, mut journal) = journal();
    let place = journal.append(&ended_line(0).1).expect("written");
    for number in 1..=COPIES_MAX {
        fs::write(dir.path().join(format!("{COPY}-{number}")), "earlier").expect("written");
    }
    add(&dir, b"damage\n");
    let (mut journal, _) = again(&dir);
    assert!(compact(&mut journal, &[place], Vec::new()).is_none());
    let copy = fs::read(dir.path().join("journal.damaged-1")).expect("a copy");
    assert_eq!(copy, b"earlier");
}

#[test]
fn what_is_no_plain_file_is_an_error_and_stays() {
    let (dir, mut journal) = journal();
    fs::create_dir(dir.path().join(FILE)).expect("made");
    assert!(journal.load().is_err());
    assert!(journal.append(&ended_line(0).1).is_err());
    assert!(dir.path().join(FILE).is_dir());
}
