//! What was found, for people and for programs.

use std::fmt;

use serde::Serialize;

/// How a check went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// As it should be.
    Ok,
    /// Works, with less safety or fewer features.
    Warn,
    /// Sandboxes cannot be run.
    Fail,
}

/// One thing looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// A stable name.
    pub name: &'static str,
    /// How it went.
    #[serde(rename = "status")]
    pub outcome: Outcome,
    /// What was found.
    pub detail: String,
    /// How to mend it; empty if there is nothing to mend.
    pub hint: String,
}

impl Check {
    /// As it should be.
    pub fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self {
            name,
            outcome: Outcome::Ok,
            detail: detail.into(),
            hint: String::new(),
        }
    }

    /// Works, with less safety or fewer features.
    pub fn warn(name: &'static str, detail: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            name,
            outcome: Outcome::Warn,
            detail: detail.into(),
            hint: hint.into(),
        }
    }

    /// Sandboxes cannot be run.
    pub fn fail(name: &'static str, detail: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            name,
            outcome: Outcome::Fail,
            detail: detail.into(),
            hint: hint.into(),
        }
    }
}

/// Everything that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Every check, in the order in which they matter.
    pub checks: Vec<Check>,
}

impl Report {
    /// Whether sandboxes can be run.
    pub fn ok(&self) -> bool {
        self.checks
            .iter()
            .all(|check| check.outcome != Outcome::Fail)
    }

    /// As one JSON object, in one line: `{"ok": …, "checks": […]}`.
    pub fn to_json(&self) -> String {
        let value = serde_json::json!({ "ok": self.ok(), "checks": self.checks });
        value.to_string()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for check in &self.checks {
            let word = match check.outcome {
                Outcome::Ok => "ok  ",
                Outcome::Warn => "warn",
                Outcome::Fail => "FAIL",
            };
            writeln!(f, "{word}  {:<26} {}", check.name, check.detail)?;
            if !check.hint.is_empty() {
                writeln!(f, "      hint: {}", check.hint)?;
            }
        }
        f.write_str(if self.ok() {
            "sandboxes can be run on this host\n"
        } else {
            "sandboxes cannot be run on this host\n"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `lodge doctor` has the same test with the same line: who reads the one reads the other.
    #[test]
    fn a_line_is_the_one_of_lodge_doctor() {
        let checks = vec![Check::fail("kernel", "too old", "")];
        let text = Report { checks }.to_string();
        assert_eq!(
            text.lines().next(),
            Some("FAIL  kernel                     too old")
        );
    }

    #[test]
    fn a_warning_is_no_failure() {
        let mut report = Report {
            checks: vec![Check::warn("a", "b", "c"), Check::ok("d", "e")],
        };
        assert!(report.ok());
        assert!(report.to_string().contains("hint: c"));
        report.checks.push(Check::fail("f", "g", ""));
        assert!(!report.ok());
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).expect("JSON");
        assert_eq!(json["ok"], false);
        assert_eq!(json["checks"][2]["status"], "fail");
    }
}
