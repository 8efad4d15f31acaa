//! What the journal says of runs: the events, and their form as lines.
//!
//! A line is sixteen hexadecimal digits of a checksum, a blank, a JSON object with the version, and a newline. Checksum and
//! `v` stay where they are in every version, so that a line of a later one is told from a damaged one. Version 2 added
//! `disk_full` to results; a line that has none is written as version 1, which older daemons read. No line has a value
//! of `secret_env`: commands and messages are masked before they come here, and of a request's body there is a keyed hash.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::age::Stamp;
use super::end::RunResult;
use super::requests::Request;
use crate::sandbox::id::RunId;

/// The version of lines that say nothing new.
const OLDEST: u64 = 1;
/// The version of lines with a result that has `disk_full`.
const WITH_DISK_FULL: u64 = 2;
/// Hexadecimal digits of a line's checksum.
const SUM_DIGITS: usize = 16;

/// What is known of a run from its start on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Begun {
    /// The run.
    pub(super) run: RunId,
    /// The caller's name for the call, if it gave one.
    pub(super) request: Option<Request>,
    /// The beginning of its command, masked.
    pub(super) command: String,
    /// When it was started: milliseconds since 1970, UTC.
    pub(super) started_ms: u64,
    /// Bytes of each stream that a result keeps.
    pub(super) output_bytes: u64,
}

/// An ended run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ended {
    /// What was known before.
    pub(super) begun: Begun,
    /// When its command ended.
    pub(super) at: Stamp,
    /// How.
    pub(super) result: RunResult,
    /// Its standard output.
    pub(super) stdout: Extent,
    /// Its standard error.
    pub(super) stderr: Extent,
}

/// What there is of a stream's log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extent {
    /// Bytes of the stream.
    pub total: u64,
    /// The first byte that is no longer there.
    pub gap_from: u64,
    /// The first one after those; equal to `gap_from` if all are there.
    pub gap_to: u64,
}

/// A line of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    /// A run is about to be started, or lives.
    Started(Begun),
    /// A run has ended.
    Ended(Box<Ended>),
    /// A run was not started after all.
    Void(RunId),
    /// All that live are being stopped.
    Stopping(Stamp),
}

/// Why a line says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unread {
    /// Torn, zeroed, or not of the journal.
    Damaged,
    /// Whole, and of a later version.
    Later,
}

#[derive(Serialize)]
struct Out<'a> {
    v: u64,
    event: &'a Line,
}

#[derive(Deserialize)]
struct AnyVersion {
    v: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct In {
    #[expect(dead_code, reason = "looked at before the rest is read")]
    v: u64,
    event: Line,
}

impl Line {
    /// Its form on disk, with its newline.
    pub(super) fn encode(&self) -> Vec<u8> {
        let out = Out {
            v: self.version(),
            event: self,
        };
        let json = serde_json::to_vec(&out).expect("a line is plain data");
        let mut line = sum(&json).into_bytes();
        line.push(b' ');
        line.extend_from_slice(&json);
        line.push(b'\n');
        line
    }

    /// Reads what `encode` wrote, with or without the newline.
    pub(super) fn decode(line: &[u8]) -> Result<Self, Unread> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let (said, rest) = line.split_at_checked(SUM_DIGITS).ok_or(Unread::Damaged)?;
        let json = rest.strip_prefix(b" ").ok_or(Unread::Damaged)?;
        if sum(json).as_bytes() != said {
            return Err(Unread::Damaged);
        }
        let v = match serde_json::from_slice::<AnyVersion>(json) {
            Ok(AnyVersion { v }) if v > WITH_DISK_FULL => return Err(Unread::Later),
            Ok(AnyVersion { v }) if v >= OLDEST => v,
            _ => return Err(Unread::Damaged),
        };
        serde_json::from_slice::<In>(json)
            .ok()
            .map(|line| line.event)
            // What has more than its version is not of that version.
            .filter(|line| line.version() <= v)
            .ok_or(Unread::Damaged)
    }

    /// The oldest version that can say it.
    fn version(&self) -> u64 {
        match self {
            Self::Ended(ended) if !ended.result.disk_full.is_empty() => WITH_DISK_FULL,
            _ => OLDEST,
        }
    }
}

impl Ended {
    /// What its logs take on disk.
    pub(super) fn log_bytes(&self) -> u64 {
        log_bytes([self.stdout, self.stderr])
    }
}

/// What the logs of a run take on disk, in bytes: whole blocks, and one for the directory.
pub(super) fn log_bytes(extents: [Extent; 2]) -> u64 {
    const BLOCK: u64 = 4096;
    let stored = extents.map(|one| one.total.saturating_sub(one.gap_to - one.gap_from));
    let files: u64 = stored
        .iter()
        .map(|bytes| bytes.next_multiple_of(BLOCK))
        .sum();
    if files == 0 { 0 } else { files + BLOCK }
}

fn sum(json: &[u8]) -> String {
    hex::encode(&Sha256::digest(json)[..SUM_DIGITS / 2])
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::super::end::{DiskFullPlace, EndedBy, Fact, verdict};
    use super::*;

    pub(in crate::exec) fn begun(request: Option<Request>) -> Begun {
        Begun {
            run: RunId::random(),
            request,
            command: "echo «A»\t\"quoted\"".to_owned(),
            started_ms: 1_700_000_000_123,
            output_bytes: 1 << 20,
        }
    }

    pub(in crate::exec) fn ended(begun: Begun, exit_code: i32) -> Ended {
        let fact = Fact::Reaped {
            wait_status: exit_code << 8,
            ended_by: EndedBy::Itself,
        };
        let run = begun.run.clone();
        let stdout = Extent {
            total: 5,
            ..Extent::default()
        };
        Ended {
            begun,
            at: Stamp::now(),
            result: RunResult {
                run,
                verdict: verdict(fact, Some(0)),
                left_running: 1,
                duration: Duration::from_nanos(1_234_567_891),
                cpu_time: None,
                peak_memory: Some(u64::MAX),
                oom_kills: Some(0),
                message: "a\nmessage".to_owned(),
                stdout_bytes: 5,
                stderr_bytes: 0,
                disk_full: Vec::new(),
            },
            stdout,
            stderr: Extent::default(),
        }
    }

    #[test]
    fn every_line_comes_back_whole() {
        let request = Request {
            id: "a \n\u{0} é".to_owned(),
            body: "00ff".to_owned(),
        };
        let begun = begun(Some(request));
        let lines = [
            Line::Started(begun.clone()),
            Line::Ended(Box::new(ended(begun.clone(), 7))),
            Line::Void(begun.run),
            Line::Stopping(Stamp::now()),
        ];
        for line in lines {
            let bytes = line.encode();
            assert_eq!(bytes.iter().filter(|b| **b == b'\n').count(), 1);
            assert_eq!(Line::decode(&bytes), Ok(line));
        }
    }

    #[test]
    fn what_is_not_a_line_of_this_version_is_told_apart() {
        let good = Line::Void(RunId::random()).encode();
        for len in 0..good.len() - 1 {
            assert_eq!(
                Line::decode(&good[..len]),
                Err(Unread::Damaged),
                "cut at {len}"
            );
        }
        for at in 0..good.len() - 1 {
            let mut flipped = good.clone();
            flipped[at] ^= 0x20;
            assert_eq!(
                Line::decode(&flipped),
                Err(Unread::Damaged),
                "flipped at {at}"
            );
        }
        assert_eq!(Line::decode(&[0; 300]), Err(Unread::Damaged));
        let later = br#"{"v":3,"event":{"dreamt":1}}"#;
        let line = [sum(later).as_bytes(), b" ", later].concat();
        assert_eq!(Line::decode(&line), Err(Unread::Later));
        let foreign = br#"{"v":1,"event":{"dreamt":1}}"#;
        let line = [sum(foreign).as_bytes(), b" ", foreign].concat();
        assert_eq!(Line::decode(&line), Err(Unread::Damaged));
    }

    /// An older daemon skips what it does not know as of a later version, and reads everything else.
    #[test]
    fn only_a_line_that_says_more_is_of_a_later_version() {
        let plain = Line::Ended(Box::new(ended(begun(None), 1)));
        let mut full = ended(begun(None), 1);
        full.result.disk_full = vec![DiskFullPlace::Root, DiskFullPlace::Shm];
        let full = Line::Ended(Box::new(full));
        let text = |line: &Line| String::from_utf8(line.encode()).expect("text");
        assert!(text(&plain).contains(r#"{"v":1,"#) && !text(&plain).contains("disk_full"));
        assert!(text(&full).contains(r#"{"v":2,"#));
        assert!(text(&full).contains(r#""disk_full":["root","shm"]"#));
        assert_eq!(Line::decode(&full.encode()), Ok(full.clone()));

        let (_, json) = text(&full).trim_end().split_once(' ').map_or_else(
            || panic!("a checksum"),
            |(sum, json)| (sum.to_owned(), json.replacen(r#""v":2"#, r#""v":1"#, 1)),
        );
        let forged = format!("{} {json}", sum(json.as_bytes()));
        assert_eq!(Line::decode(forged.as_bytes()), Err(Unread::Damaged));
    }

    #[test]
    fn blocks_are_counted_and_gaps_are_not() {
        let extent = |total, gap_from, gap_to| Extent {
            total,
            gap_from,
            gap_to,
        };
        assert_eq!(log_bytes([Extent::default(); 2]), 0);
        assert_eq!(log_bytes([extent(1, 0, 0), extent(4097, 0, 0)]), 4096 * 4);
        assert_eq!(
            log_bytes([extent(1 << 30, 4096, (1 << 30) - 4096), Extent::default()]),
            4096 * 3
        );
        assert_eq!(log_bytes([extent(9, 0, 9), Extent::default()]), 0);
    }
}
