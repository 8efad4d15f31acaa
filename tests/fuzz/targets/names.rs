//! Ids, names and references of callers: what is accepted can be a part of a path or of a line, and is itself again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use lodged::image::{Digest, ImageName, ImageRef};
use lodged::sandbox::id::{RunId, SandboxId, SandboxName, Tenant};

fuzz_target!(|text: &str| {
    if let Ok(id) = SandboxId::parse(text) {
        is_plain(id.as_str(), 20);
        assert_eq!(id.as_str(), text);
    }
    if let Ok(id) = RunId::parse(text) {
        is_plain(id.as_str(), 20);
    }
    if let Ok(name) = SandboxName::parse(text) {
        is_plain(name.as_str(), 128);
        let hostname = name.hostname();
        assert!(!hostname.is_empty() && hostname.len() <= 63, "{hostname:?}");
        assert!(
            hostname.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'),
            "{hostname:?}"
        );
    }
    if let Ok(tenant) = Tenant::parse(text) {
        is_plain(&tenant.to_string(), 63);
    }
    if let Ok(name) = ImageName::parse(text) {
        assert_eq!(name.to_string(), text);
        assert!(text.is_ascii() && !text.starts_with(['/', '.', '-']) && text.len() <= 128);
    }
    if let Ok(digest) = Digest::parse(text) {
        let again = Digest::parse(&digest.to_string());
        assert!(again.is_ok_and(|again| again == digest));
    }
    if let Ok(image) = ImageRef::parse(text) {
        assert!(ImageRef::parse(&image.to_string()).is_ok());
    }
});

/// Of these characters, no longer than that, and neither this directory nor the one above.
fn is_plain(text: &str, most: usize) {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    assert!(!text.is_empty() && text.len() <= most, "{text:?}");
    assert!(text.bytes().all(plain) && !text.starts_with(['.', '-']), "{text:?}");
}
