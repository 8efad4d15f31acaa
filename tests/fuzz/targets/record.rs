//! Records of sandboxes, as an earlier daemon, another version or a failing disk left them: each is read, or told to be damaged, and is
//! never anybody else's. What follows the first byte is the record within its envelope, or the whole file.
#![no_main]

use std::fs;

use libfuzzer_sys::fuzz_target;
use lodged::sandbox::id::SandboxId;
use lodged::store::{Loaded, Store};
use sha2::{Digest as _, Sha256};

fuzz_target!(|data: &[u8]| {
    let Some((kind, body)) = data.split_first() else {
        return;
    };
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let store = Store::open(dir.path()).expect("a store");
    let id = SandboxId::parse("aaaaaaaaaaaaaaaaaaaa").expect("an id");
    store.make_dir(&id).expect("a directory");
    let file = if kind % 4 == 0 {
        body.to_vec()
    } else {
        let sum = hex::encode(Sha256::digest(body));
        let head = format!(r#"{{"version":{},"sha256":"{sum}","record":"#, kind % 4);
        [head.as_bytes(), body, b"}\n"].concat()
    };
    fs::write(store.dir(&id).join("record.json"), file).expect("written");
    let loaded = store.load().expect("a directory that can be read");
    assert_eq!(loaded.len(), 1);
    match &loaded[0] {
        Loaded::Sandbox(record) => {
            assert_eq!(record.id, id);
            // What was read is written and read again as the same.
            store.write(record).expect("written");
            let again = store.load().expect("read");
            assert!(matches!(&again[0], Loaded::Sandbox(again) if again == record));
        }
        _ => {}
    }
});
