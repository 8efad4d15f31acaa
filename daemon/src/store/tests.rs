//! Records survive, damaged ones are told from good ones, and nothing that could not be read is touched.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use tempfile::TempDir;

use super::*;
use crate::sandbox::confinement::Confinement;
use crate::sandbox::id::{SandboxName, Tenant};
use crate::sandbox::idle::{After, IdlePolicy};
use crate::sandbox::limits::{Limits, RequestedLimits, Shortfall};
use crate::sandbox::spec::Spec;

fn store() -> (TempDir, Store) {
    let dir = tempfile::tempdir().expect("temporary directory");
    let store = Store::open(dir.path()).expect("open");
    (dir, store)
}

fn record(id: SandboxId) -> Record {
    Record {
        id,
        created_at_ms: 1_700_000_000_000,
        uid_base: 0x7003_0000,
        spec: Spec {
            tenant: Tenant::default(),
            name: SandboxName::parse("agent-7").expect("valid"),
            image: "base".into(),
            image_digest: "sha256:00".into(),
            env: BTreeMap::from([("LINE".into(), "a\nb\"=\u{1F980}".into())]),
            labels: BTreeMap::new(),
            requested: RequestedLimits {
                pids: Some(64),
                ..Default::default()
            },
            limits: Limits::default(),
            shortfall: Shortfall::Refuse,
            confinement: Confinement::default(),
            idle: IdlePolicy {
                stop: After::Never,
                ..IdlePolicy::default()
            },
        },
    }
}

/// A store with one written sandbox.
fn written() -> (TempDir, Store, Record) {
    let (dir, store) = store();
    let record = record(SandboxId::random());
    store.make_dir(&record.id).expect("new");
    store.write(&record).expect("written");
    (dir, store, record)
}

fn record_path(store: &Store, id: &SandboxId) -> PathBuf {
    store.dir(id).join(RECORD_FILE)
}

fn only(store: &Store) -> Loaded {
    let mut all = store.load().expect("listed");
    assert_eq!(all.len(), 1);
    all.remove(0)
}

fn damage(store: &Store) -> Damage {
    match only(store) {
        Loaded::Damaged(_, damage) => damage,
        other => panic!("not damaged: {other:?}"),
    }
}

#[test]
fn a_record_is_read_back_as_written() {
    let (_dir, store, record) = written();
    match only(&store) {
        Loaded::Sandbox(read) => assert_eq!(*read, record),
        other => panic!("{other:?}"),
    }
}

/// CASES J2: truncated at every length, each is damaged with a reason, and the file stays as it was.
#[test]
fn a_truncated_record_is_damaged_and_left_as_it_is() {
    let (_dir, store, record) = written();
    let path = record_path(&store, &record.id);
    let whole = fs::read(&path).expect("read");
    // Only the final newline may be missing.
    for len in 0..whole.len() - 1 {
        fs::write(&path, &whole[..len]).expect("truncate");
        assert!(!damage(&store).reason.is_empty());
        assert_eq!(fs::read(&path).expect("read"), &whole[..len]);
    }
}

#[test]
fn zeroed_null_and_foreign_records_are_damaged_with_the_reason() {
    let (_dir, store, record) = written();
    let path = record_path(&store, &record.id);
    let whole = fs::read_to_string(&path).expect("read");
    let cases = [
        ("\0".repeat(whole.len()), "not JSON"),
        ("null".into(), "no version"),
        ("[]".into(), "no version"),
        ("{\"version\":\"1\"}".into(), "no version"),
        (
            whole.replacen("\"version\":3", "\"version\":4", 1),
            "version 4",
        ),
        (whole.replacen("agent-7", "agent-8", 1), "checksum"),
        ("[".repeat(100_000), "not JSON"),
    ];
    for (text, reason) in cases {
        fs::write(&path, &text).expect("damage");
        let found = damage(&store).reason;
        assert!(found.contains(reason), "{found:?} does not say {reason:?}");
        assert_eq!(fs::read_to_string(&path).expect("read"), text);
    }
}

#[test]
fn a_record_of_another_version_still_tells_name_and_range() {
    let (_dir, store, record) = written();
    let path = record_path(&store, &record.id);
    let text =
        fs::read_to_string(&path)
            .expect("read")
            .replacen("\"version\":3", "\"version\":9", 1);
    fs::write(&path, text).expect("damage");
    let damage = damage(&store);
    assert_eq!(damage.name, Some(record.spec.name));
    assert_eq!(damage.uid_base, Some(record.uid_base));
}

/// Whatever became of a record, its sandbox keeps name, tenant and range. A copy of its directory does not claim them, and
/// neither does a directory that others may write to.
#[test]
fn a_sandbox_without_a_record_keeps_its_identity() {
    let (_dir, store, record) = written();
    let path = record_path(&store, &record.id);
    let whole = fs::read_to_string(&path).expect("read");
    let told = |damage: Damage| (damage.tenant, damage.name, damage.uid_base);
    let kept = (
        Some(record.spec.tenant.clone()),
        Some(record.spec.name.clone()),
        Some(record.uid_base),
    );
    let other_name = whole.replacen("agent-7", "agent-6", 1);
    for text in ["", "\0\0\0", "null", &other_name] {
        fs::write(&path, text).expect("damage");
        assert_eq!(told(damage(&store)), kept, "{text:?}");
    }
    let upper = store.layer_dir(&record.id).join("upper");
    fs::create_dir(&upper).expect("upper");
    fs::write(upper.join("precious"), "x").expect("file");
    fs::remove_file(&path).expect("removed");
    assert_eq!(told(damage(&store)), kept);

    let (dir, other) = (store.dir(&record.id), SandboxId::random());
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).expect("chmod");
    assert_eq!(told(damage(&store)), (None, None, None));
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).expect("chmod");
    fs::rename(&dir, store.dir(&other)).expect("a copy");
    assert_eq!(told(damage(&store)), (None, None, None));
}

/// A record as version 1 wrote it (without an idle policy), or version 2 (without limits on files).
fn of_version(version: u32, record: &Record) -> String {
    let mut value = serde_json::to_value(record).expect("plain data");
    let spec = value["spec"].as_object_mut().expect("an object");
    if version < 2 {
        spec.remove("idle").expect("version 2 has one");
    }
    let limits = spec["limits"].as_object_mut().expect("an object");
    for field in ["disk_bytes", "inodes"] {
        limits.remove(field).expect("version 3 has it");
    }
    envelope(version, &value.to_string())
}

fn envelope(version: u32, record: &str) -> String {
    use sha2::Digest as _;
    let sum = hex::encode(sha2::Sha256::digest(record.as_bytes()));
    format!(r#"{{"version":{version},"sha256":"{sum}","record":{record}}}"#)
}

#[test]
fn a_record_of_an_older_version_is_read_and_gets_what_the_server_gives() {
    for version in [1, 2] {
        let (_dir, store, mut record) = written();
        let path = record_path(&store, &record.id);
        fs::write(path, of_version(version, &record)).expect("written");
        let idle = IdlePolicy {
            delete: After::parse(77, 0).expect("valid"),
            ..IdlePolicy::default()
        };
        let limits = Limits {
            disk_bytes: 3 << 30,
            inodes: 5000,
            pids: 77,
            ..Limits::default()
        };
        let store = store.upgrading_with(Upgrade { idle, limits });
        let Loaded::Sandbox(loaded) = only(&store) else {
            panic!("it is damaged");
        };
        if version < 2 {
            record.spec.idle = idle;
        }
        record.spec.limits.disk_bytes = limits.disk_bytes;
        record.spec.limits.inodes = limits.inodes;
        assert_eq!(*loaded, record);
        // From its next write on it is of this version, and keeps what it has.
        store.write(&loaded).expect("written");
        let store = store.upgrading_with(Upgrade::default());
        assert!(matches!(only(&store), Loaded::Sandbox(again) if again == loaded));
    }
}

#[test]
fn fields_of_another_version_are_damage() {
    let (_dir, store, record) = written();
    let whole = serde_json::to_string(&record).expect("plain data");
    let old = of_version(2, &record).replacen("\"version\":2", "\"version\":3", 1);
    for text in [envelope(1, &whole), envelope(2, &whole), old] {
        fs::write(record_path(&store, &record.id), text).expect("written");
        assert!(damage(&store).reason.contains("malformed"));
    }
}

#[test]
fn another_sandboxs_record_is_damage() {
    let (_dir, store, record) = written();
    let other = SandboxId::random();
    store.make_dir(&other).expect("new");
    fs::copy(record_path(&store, &record.id), record_path(&store, &other)).expect("copy");
    let damaged = store
        .load()
        .expect("listed")
        .into_iter()
        .find_map(|loaded| match loaded {
            Loaded::Damaged(id, damage) => Some((id, damage)),
            _ => None,
        });
    let (id, damage) = damaged.expect("one is damaged");
    assert_eq!(id, other);
    assert!(
        damage.reason.contains(record.id.as_str()),
        "{}",
        damage.reason
    );
    // Or the copy would take them from the sandbox that has them.
    assert_eq!((damage.name, damage.uid_base), (None, None));
}

#[test]
fn a_link_for_a_record_is_not_followed() {
    let (_dir, store, record) = written();
    let path = record_path(&store, &record.id);
    let elsewhere = store.trash_dir().join("elsewhere");
    fs::rename(&path, &elsewhere).expect("move");
    std::os::unix::fs::symlink(&elsewhere, &path).expect("link");
    assert!(damage(&store).reason.contains("cannot be read"));
}

#[test]
fn a_create_that_ended_early_is_unfinished_but_files_without_a_record_are_damage() {
    let (_dir, store) = store();
    let id = SandboxId::random();
    store.make_dir(&id).expect("new");
    assert!(matches!(only(&store), Loaded::Unfinished(_)));

    let upper = store.layer_dir(&id).join("upper");
    fs::create_dir(&upper).expect("upper");
    assert!(matches!(only(&store), Loaded::Unfinished(_)));

    fs::write(upper.join("precious"), "x").expect("file");
    assert!(damage(&store).reason.contains("cannot be read"));
}

#[test]
fn a_layer_that_was_emptied_under_its_record_is_found() {
    let (_dir, store, record) = written();
    let layer = store.layer_dir(&record.id);
    // A create that ended early has none of it either, and nothing to lose.
    store.make_dir(&SandboxId::random()).expect("new");
    assert_eq!(store.emptied_layers().expect("looked"), [layer.as_path()]);
    fs::remove_dir(&layer).expect("gone");
    assert_eq!(store.emptied_layers().expect("looked"), [layer.as_path()]);
    fs::create_dir(&layer).expect("back");
    fs::write(layer.join("volume"), "1").expect("with what it had");
    assert!(store.emptied_layers().expect("looked").is_empty());
    assert_eq!(store.layer_dirs().expect("listed").len(), 2);
}

#[test]
fn a_create_that_had_a_run_is_no_unfinished_one() {
    let (_dir, store) = store();
    let id = SandboxId::random();
    store.make_dir(&id).expect("new");
    assert!(matches!(only(&store), Loaded::Unfinished(_)));
    fs::write(store.runs_dir(&id).join("journal"), "").expect("a trace");
    assert!(damage(&store).reason.contains("cannot be read"));
}

#[test]
fn a_leftover_temporary_record_changes_nothing() {
    let (_dir, store, record) = written();
    fs::write(
        store.dir(&record.id).join("record.json.new"),
        "{\"version\":1,",
    )
    .expect("half");
    assert!(matches!(only(&store), Loaded::Sandbox(read) if *read == record));
    store.write(&record).expect("written over the leftover");
}

#[test]
fn an_existing_directory_is_never_taken_for_a_new_sandbox() {
    let (_dir, store, record) = written();
    assert!(store.make_dir(&record.id).is_err());
}

#[test]
fn a_discarded_sandbox_is_out_of_sight_and_keeps_its_range_until_it_is_gone() {
    let (_dir, store, record) = written();
    store.discard(&record.id).expect("discarded");
    assert!(store.load().expect("listed").is_empty());
    assert_eq!(
        store.trash().expect("listed"),
        [(record.id.clone(), Some(record.uid_base))]
    );
    store.discard(&record.id).expect("twice is once");
}

#[test]
fn a_forgotten_sandbox_is_none_any_more() {
    let (_dir, store, record) = written();
    store.forget(&record.id).expect("forgotten");
    assert!(matches!(only(&store), Loaded::Unfinished(id) if id == record.id));
    store.forget(&record.id).expect("twice is once");
}

#[test]
fn foreign_entries_are_left_alone() {
    let (_dir, store, record) = written();
    fs::create_dir(store.dir(&record.id).with_file_name("lost+found")).expect("foreign");
    assert!(matches!(only(&store), Loaded::Sandbox(_)));
}

#[test]
fn a_directory_that_others_may_write_is_refused() {
    let (dir, _store) = store();
    let path = dir.path().join("sandboxes");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("chmod");
    assert!(matches!(
        Store::open(dir.path()),
        Err(StoreError::Exposed { mode: 0o777, .. })
    ));
}
