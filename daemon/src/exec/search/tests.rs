//! Searching logs on disk: matches, context, gaps, and bounds after which the next call goes on.

use super::super::log::Budget;
use super::*;

const ALL: Budget = Budget {
    first: 1 << 30,
    last: 1 << 30,
    step: 1 << 20,
};

fn log(dir: &tempfile::TempDir, text: &[u8], budget: Budget) -> StreamLog {
    let log = StreamLog::new(&dir.path().join("run"), Stream::Stdout, budget);
    for piece in text.chunks(64 << 10) {
        log.append(piece);
    }
    log
}

fn query(pattern: &str) -> RawQuery {
    RawQuery {
        pattern: pattern.to_owned(),
        ..Default::default()
    }
}

fn bytes(bytes: u64) -> Bounds {
    Bounds {
        bytes,
        until: Instant::now() + Duration::from_secs(600),
    }
}

fn found_in(log: &StreamLog, raw: &RawQuery, bounds: Bounds) -> Found {
    search_here(log, &compile(raw).expect("a pattern"), raw, bounds).expect("readable")
}

fn found(text: &[u8], raw: &RawQuery) -> Found {
    let dir = tempfile::tempdir().expect("tempdir");
    found_in(&log(&dir, text, ALL), raw, Bounds::new())
}

/// `>` before a line that matches.
fn shown(found: &Found) -> Vec<String> {
    let lines = found.lines.iter().map(|line| {
        let mark = if line.matched { ">" } else { "" };
        format!("{mark}{}", String::from_utf8_lossy(&line.text))
    });
    lines.collect()
}

/// All answers to a query, each gone on with.
fn paged(log: &StreamLog, raw: &RawQuery, bounds: impl Fn() -> Bounds) -> Vec<String> {
    let (mut raw, mut all) = (raw.clone(), Vec::new());
    loop {
        let found = found_in(log, &raw, bounds());
        all.extend(shown(&found));
        match found.next_offset {
            Some(next) => {
                assert!(next > raw.offset, "no progress at {next}");
                raw.offset = next;
            }
            None => return all,
        }
    }
}

#[test]
fn lines_are_found_with_their_offsets() {
    let found = found(b"one\ntwo\n\nthree two\ntwo", &query("two"));
    assert_eq!(shown(&found), [">two", ">three two", ">two"]);
    let offsets: Vec<_> = found.lines.iter().map(|line| line.offset).collect();
    assert_eq!(offsets, [4, 9, 19]);
    assert_eq!((found.next_offset, found.total), (None, 22));
}

#[test]
fn overlapping_contexts_are_merged() {
    let raw = RawQuery {
        before: 2,
        after: 1,
        ..query("x")
    };
    let found = found(b"a\nb\nc\nx1\nd\nx2\ne\nf\ng\nh\nx3\n", &raw);
    assert_eq!(
        shown(&found),
        ["b", "c", ">x1", "d", ">x2", "e", "g", "h", ">x3"]
    );
}

#[test]
fn upper_and_lower_case_and_bytes_that_are_no_text() {
    let raw = RawQuery {
        ignore_case: true,
        ..query("ÄB")
    };
    assert_eq!(shown(&found("x äb\n".as_bytes(), &raw)), [">x äb"]);
    assert_eq!(found(b"\xff\xfe error\n", &query("error$")).lines.len(), 1);
    assert_eq!(found(b"a\xffb\n", &query("a.b")).lines.len(), 0);
    assert_eq!(found(b"a\xffb\n", &query("a(?-u:.)b")).lines.len(), 1);
}

#[test]
fn a_pattern_never_matches_over_lines() {
    assert_eq!(found(b"a\nb\n", &query("a\\s*b")).lines.len(), 0);
    assert_eq!(found(b"a\nb\n", &query("(?s)a.b")).lines.len(), 0);
    assert_eq!(found(b"a\nb\n", &query("^b$")).lines.len(), 1);
    assert_eq!(found(b"", &query("")).lines.len(), 0);
    assert_eq!(found(b"\n\n", &query("^$")).lines.len(), 2);
}

#[test]
fn long_lines_are_cut_in_the_answer_and_searched_whole() {
    let mut text = vec![b'-'; 5000];
    text.extend_from_slice(b"needle\n");
    let line = found(&text, &query("needle")).lines.remove(0);
    assert_eq!((line.text.len(), line.truncated), (4096, true));
    // Longer than the longest: in pieces.
    let mut text = vec![b'-'; lines::LINE_MAX_BYTES + 10];
    text.extend_from_slice(b"needle\nneedle\n");
    let found = found(&text, &query("needle"));
    let offsets: Vec<_> = found.lines.iter().map(|line| line.offset).collect();
    let long = lines::LINE_MAX_BYTES as u64;
    assert_eq!(offsets, [long, long + 17]);
    assert_eq!(
        (found.lines[0].truncated, found.lines[1].truncated),
        (true, false)
    );
}

#[test]
fn a_line_of_just_the_longest_is_one() {
    for end in [&b"\n"[..], b""] {
        let mut text = vec![b'-'; lines::LINE_MAX_BYTES];
        text.extend_from_slice(end);
        let found = found(&text, &query("^-*$"));
        assert_eq!((found.lines.len(), found.total), (1, text.len() as u64));
        assert_eq!(found.lines[0].offset, 0);
    }
}

#[test]
fn going_on_gives_every_line_once_whatever_the_bounds() {
    let dir = tempfile::tempdir().expect("tempdir");
    let text: String = (0..3000).map(|i| format!("line {i}\n")).collect();
    let log = log(&dir, text.as_bytes(), ALL);
    let raw = |max_matches| RawQuery {
        before: 3,
        after: 2,
        max_matches,
        ..query("[05]$")
    };
    let whole = paged(&log, &raw(1000), Bounds::new);
    assert_eq!(whole.len(), 3000 - 2);
    for max in [1, 2, 7, 100] {
        let same = paged(&log, &raw(max), Bounds::new) == whole;
        assert!(same, "{max} matches at a time");
    }
    // Less than the lines before a match: going on comes first, and they are left out.
    for (size, all) in [(1, false), (60, true), (1000, true)] {
        let mut lines = paged(&log, &raw(1000), || bytes(size));
        let mut wanted = whole.clone();
        if !all {
            lines.retain(|line| line.starts_with('>'));
            wanted.retain(|line| line.starts_with('>'));
        }
        assert!(lines == wanted, "{size} bytes at a time");
    }
}

#[test]
fn an_answer_is_bounded_and_nothing_is_left_out() {
    let dir = tempfile::tempdir().expect("tempdir");
    let line = "x".repeat(4000);
    let text: String = (0..700).map(|i| format!("{i:04}{line}\n")).collect();
    let log = log(&dir, text.as_bytes(), ALL);
    for (before, after) in [(0, 0), (100, 100), (0, 100)] {
        let raw = RawQuery {
            before,
            after,
            max_matches: 1000,
            ..query("x")
        };
        let first = found_in(&log, &raw, Bounds::new());
        let size: usize = first.lines.iter().map(|line| line.text.len()).sum();
        assert!(size <= 1 << 20, "{size} bytes");
        assert_eq!(paged(&log, &raw, Bounds::new).len(), 700);
    }
}

#[test]
fn a_gap_is_told_and_joins_nothing() {
    let dir = tempfile::tempdir().expect("tempdir");
    let small = Budget {
        first: 4096,
        last: 4096,
        step: 4096,
    };
    let text: String = (0..20_000).map(|i| format!("{i:07}\n")).collect();
    let log = log(&dir, text.as_bytes(), small);
    let raw = RawQuery {
        before: 100,
        max_matches: 1000,
        ..query("19999$")
    };
    let found = found_in(&log, &raw, Bounds::new());
    let [gap] = &found.gaps[..] else {
        panic!("gaps: {:?}", found.gaps)
    };
    assert_eq!(gap.start, 4096);
    assert!(gap.end > 100_000 && gap.end <= text.len() as u64 - 4096);
    // All context is from behind the gap.
    assert!(found.lines.iter().all(|line| line.offset >= gap.end));
    assert_eq!(found.lines.len(), 101);
}

#[test]
fn refusals_say_what_is_wrong() {
    for (pattern, word) in [("(", "unclosed"), ("a{9999}{9999}", "large"), ("\\", "")] {
        let error = compile(&query(pattern)).expect_err(pattern);
        assert!(error.to_string().contains(word), "{error}");
        assert_eq!(error.reason(), "INVALID_PATTERN");
        assert!(!error.to_string().contains('\n'), "{error}");
    }
    assert!(check(&query(&"x".repeat(1025))).is_err());
    let raw = RawQuery {
        before: 101,
        ..query("x")
    };
    assert_eq!(
        check(&raw).expect_err("too many").reason(),
        "INVALID_SEARCH"
    );
}
