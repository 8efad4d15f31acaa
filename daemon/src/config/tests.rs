//! Settings: what overrides what, and that every mistake is named.

use std::path::Path;
use std::time::Duration;

use super::{Config, Mistake, Raw};
use crate::storage::{Driver, Wish};

fn from_file(text: &str) -> Result<Config, Vec<String>> {
    resolve(Raw::default().file(Path::new("lodged.toml"), text))
}

fn resolve(raw: Raw) -> Result<Config, Vec<String>> {
    Config::resolve(raw).map_err(|mistakes| mistakes.iter().map(Mistake::to_string).collect())
}

#[test]
fn an_empty_file_gives_the_defaults() {
    let config = from_file("").expect("defaults are valid");
    assert_eq!(config.state_dir, Path::new("/var/lib/lodge"));
    assert_eq!(config.images_dir, None);
    let storage = config.storage;
    assert_eq!((storage.driver, storage.pool_bytes), (Wish::Auto, None));
    assert_eq!(storage.reserve_bytes, 1 << 30);
    assert_eq!(config.default_timeout, Some(Duration::from_secs(120)));
    assert_eq!(config.max_timeout, None);
    assert_eq!(config.limits.memory_bytes, 2 << 30);
}

#[test]
fn the_environment_overrides_the_file_and_flags_override_both() {
    let raw = Raw::default()
        .file(
            Path::new("lodged.toml"),
            "default_image = 'file'\ncgroup_parent = 'file'\nstate_dir = '/file'\n[limits]\npids = 17\n",
        )
        .environment(|name| match name {
            "LODGE_CGROUP_PARENT" | "LODGE_STATE_DIR" => Some("/env".trim_start_matches('/').into()),
            "LODGE_LIMITS_PIDS" => Some("18".into()),
            _ => None,
        })
        .flags(|name| (name == "state-dir").then(|| "/flag".into()));
    let config = resolve(raw).expect("valid");
    assert_eq!(config.default_image, "file");
    assert_eq!(config.cgroup_parent, "env");
    assert_eq!(config.state_dir, Path::new("/flag"));
    assert_eq!(config.limits.pids, 18);
}

#[test]
fn every_mistake_is_reported_at_once() {
    let mistakes = from_file(
        "stat_dir = '/x'\nlisten = 'tcp://0.0.0.0:1'\nlog_level = 'loud'\ndefault_timeout_seconds = -1\n\
         [limits]\npids = 0\ndisks = 1\n[network]\nmode = 'open'\n",
    )
    .expect_err("seven mistakes");
    for wanted in [
        "unknown key stat_dir",
        "listen must be unix:///path",
        "log_level must be",
        "default_timeout_seconds must be a whole number",
        "pids is 0, less than the minimum of 16",
        "unknown key limits.disks",
        "unknown key network",
    ] {
        assert!(
            mistakes.iter().any(|m| m.contains(wanted)),
            "{wanted:?} is not in {mistakes:#?}"
        );
    }
    assert_eq!(mistakes.len(), 7, "{mistakes:#?}");
    assert!(
        mistakes.iter().all(|m| m.starts_with("lodged.toml: ")),
        "{mistakes:#?}"
    );
}

#[test]
fn a_mistake_names_the_variable_or_the_flag() {
    let raw = Raw::default()
        .environment(|name| (name == "LODGE_MAX_TIMEOUT_SECONDS").then(|| "soon".into()))
        .flags(|name| (name == "log-format").then(|| "xml".into()));
    let mistakes = resolve(raw).expect_err("two mistakes");
    assert!(
        mistakes
            .iter()
            .any(|m| m.starts_with("environment variable LODGE_MAX_TIMEOUT_SECONDS: "))
    );
    assert!(mistakes.iter().any(|m| m.starts_with("--log-format: ")));
}

#[test]
fn a_maximum_timeout_bounds_the_default() {
    let config = from_file("max_timeout_seconds = 30").expect("valid");
    assert_eq!(config.default_timeout, Some(Duration::from_secs(30)));
    for text in [
        "max_timeout_seconds = 30\ndefault_timeout_seconds = 31",
        "max_timeout_seconds = 30\ndefault_timeout_seconds = 0",
    ] {
        assert!(from_file(text).is_err(), "{text}");
    }
}

#[test]
fn a_uid_block_that_meets_others_is_refused() {
    for text in [
        "uid_range_start = 0",
        "uid_range_start = 65536\nuid_range_count = 0",
        "uid_range_start = 100000",
        "uid_range_start = 4294901760\nuid_range_count = 1",
        "uid_range_count = 4096",
    ] {
        assert!(from_file(text).is_err(), "{text}");
    }
}

#[test]
fn storage_is_a_known_driver_and_a_pool_of_a_useful_size() {
    let text = "[storage]\ndriver = 'btrfs'\npool_bytes = 1073741824\nreserve_bytes = 0";
    let storage = from_file(text).expect("valid").storage;
    assert_eq!(storage.driver, Wish::One(Driver::Btrfs));
    assert_eq!(
        (storage.pool_bytes, storage.reserve_bytes),
        (Some(1 << 30), 0)
    );
    let mistakes = from_file("[storage]\ndriver = 'zfs'\npool_bytes = 4096").expect_err("two");
    assert!(
        mistakes[0].contains("auto, btrfs or overlay"),
        "{mistakes:?}"
    );
    assert!(mistakes[1].contains("storage.pool_bytes"), "{mistakes:?}");
    assert_eq!(mistakes.len(), 2, "{mistakes:?}");
}

#[test]
fn a_table_that_is_written_as_a_value_is_told_as_such() {
    let mistakes = from_file("limits = 4").expect_err("a mistake");
    assert!(mistakes[0].contains("write [limits]"), "{mistakes:?}");
}

#[test]
fn image_and_group_must_be_names() {
    let mistakes =
        from_file("default_image = '../x'\nsocket_group = ''").expect_err("two mistakes");
    assert!(
        mistakes.iter().any(|m| m.contains("default_image"))
            && mistakes.iter().any(|m| m.contains("socket_group")),
        "{mistakes:?}"
    );
    assert_eq!(mistakes.len(), 2, "{mistakes:?}");
}

#[test]
fn variables_that_name_no_key_are_found() {
    let names = [
        "LODGE_LOG_LEVEL",
        "LODGE_LOGLEVEL",
        "LODGE_ENDPOINT",
        "HOME",
    ];
    let unknown = super::unknown_variables(names.map(String::from));
    assert_eq!(unknown, ["LODGE_LOGLEVEL"]);
}
