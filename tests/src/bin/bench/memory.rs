//! Proportional set sizes: what a process holds of memory, shared pages split among those who share them.

use std::fs;

use anyhow::{Context, Result};
use lodge_tests::host;

/// Proportional set size of a process, in KiB.
pub(crate) fn pss_kib(pid: i32) -> Result<f64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let value =
        host::status_field(&text, "Pss").and_then(|v| v.split_whitespace().next()?.parse().ok());
    value.with_context(|| format!("{path} has no Pss"))
}

/// Proportional set size of several processes together, in KiB.
pub(crate) fn sum_kib(pids: &[i32]) -> Result<f64> {
    pids.iter().map(|pid| pss_kib(*pid)).sum()
}

/// Pids of the processes whose arguments contain all of these.
pub(crate) fn with_arguments(wanted: &[&str]) -> Result<Vec<i32>> {
    let mut found = Vec::new();
    for pid in host::pids()? {
        let Ok(raw) = fs::read(format!("/proc/{pid}/cmdline")) else {
            continue;
        };
        let arguments: Vec<_> = raw.split(|b| *b == 0).collect();
        let has = |word: &&str| arguments.iter().any(|a| a.ends_with(word.as_bytes()));
        if wanted.iter().all(has) {
            found.push(pid);
        }
    }
    Ok(found)
}
