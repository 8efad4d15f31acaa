//! Durations and sizes as people write them.

use std::time::{Duration, SystemTime};

/// Bytes per unit. Only powers of 1024: `MB` would mean one thing to some and another to others.
const UNITS: &[(&str, u64)] = &[
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// Reads `90s`, `5m`, `1h30m`, `250ms`; a bare number is seconds, as for timeout(1).
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    humantime::parse_duration(text)
        .map_err(|e| format!("{e} (write 90s, 5m, 1h30m, or 0 for none)"))
}

/// Reads the same as [`parse_duration`], and `never`, which is zero.
pub(crate) fn parse_idle(text: &str) -> Result<Duration, String> {
    match text {
        "never" => Ok(Duration::ZERO),
        text => parse_duration(text).map_err(|_| "write 90s, 10m, 3days, or never".to_owned()),
    }
}

/// `10m`, to the second; milliseconds where it is less than one.
pub(crate) fn duration(duration: Duration) -> String {
    let shown = match duration.as_secs() {
        0 => Duration::from_millis(u64::from(duration.subsec_millis())),
        seconds => Duration::from_secs(seconds),
    };
    humantime::format_duration(shown).to_string()
}

/// `1s 500ms`: all of it, to the millisecond.
pub(crate) fn exact(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    humantime::format_duration(Duration::from_millis(millis)).to_string()
}

/// Reads `512MiB`, `2GiB`, or bare bytes.
pub(crate) fn parse_size(text: &str) -> Result<i64, String> {
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let factor = match unit {
        "" => Some(1),
        unit => UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .map(|(_, factor)| *factor),
    };
    let size = digits
        .parse::<u64>()
        .ok()
        .zip(factor)
        .and_then(|(n, factor)| n.checked_mul(factor));
    size.and_then(|size| i64::try_from(size).ok())
        .ok_or_else(|| "write a whole number of bytes, or one with KiB, MiB, GiB or TiB".to_owned())
}

/// Reads `2` or `0.5` CPUs, as thousandths of one.
pub(crate) fn parse_cpus(text: &str) -> Result<i64, String> {
    let problem = || "write a number of CPUs with at most three decimals, e.g. 1.5".to_owned();
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(decimals) || decimals.len() > 3 {
        return Err(problem());
    }
    format!("{whole}{decimals:0<3}")
        .parse()
        .map_err(|_| problem())
}

/// `1.5 GiB`.
pub(crate) fn size(bytes: u64) -> String {
    match UNITS.iter().rev().find(|(_, factor)| bytes >= *factor) {
        // Display only: the precision that f64 loses is far below the one decimal shown.
        #[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
        Some((name, factor)) => format!("{:.1} {name}", bytes as f64 / *factor as f64),
        None => format!("{bytes} B"),
    }
}

/// UTC, to the second; `-` where it is not known.
pub(crate) fn time(time: Option<SystemTime>) -> String {
    time.map_or_else(
        || "-".to_owned(),
        |t| humantime::format_rfc3339_seconds(t).to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        for (text, millis) in [
            ("0", 0),
            ("120", 120_000),
            ("90s", 90_000),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("250ms", 250),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(millis)),
                "{text}"
            );
        }
        for text in [
            "",
            "-1",
            "1.5",
            "NaN",
            "inf",
            "5 parsecs",
            "99999999999999999999",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn idle_times_may_be_never() {
        assert_eq!(parse_idle("never"), Ok(Duration::ZERO));
        assert_eq!(parse_idle("3days"), Ok(Duration::from_secs(259_200)));
        assert!(parse_idle("soon").is_err_and(|error| error.contains("never")));
    }

    #[test]
    fn durations_are_shown_to_the_second() {
        for (millis, text) in [(0, "0s"), (250, "250ms"), (61_999, "1m 1s")] {
            assert_eq!(duration(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn a_policy_is_shown_to_the_millisecond() {
        for (millis, text) in [(1, "1ms"), (1_500, "1s 500ms"), (600_000, "10m")] {
            assert_eq!(exact(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("1024", 1024),
            ("512MiB", 512 << 20),
            ("2GiB", 2 << 30),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "MiB", "1MB", "1.5GiB", "-1", "9999999999TiB", "1 GiB"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert_eq!(
            (size(1023), size(1536 << 20)),
            ("1023 B".into(), "1.5 GiB".into())
        );
    }

    #[test]
    fn cpus() {
        assert_eq!(
            (parse_cpus("2"), parse_cpus("0.5"), parse_cpus("1.25")),
            (Ok(2000), Ok(500), Ok(1250))
        );
        for text in [
            "",
            ".",
            "1.",
            ".5",
            "-1",
            "1.2345",
            "NaN",
            "1e3",
            "9223372036854775807",
        ] {
            assert!(parse_cpus(text).is_err(), "{text}");
        }
    }
}
