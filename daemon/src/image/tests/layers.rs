//! `docker save` and OCI archives: layers in order, what they hide, configs and digests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::archive::{Archive, gzip, sha256, zstd};
use super::arena::Arena;
use crate::image::Image;

/// A layer below, and one above that hides some of it.
fn two_layers() -> [Vec<u8>; 2] {
    let lower = Archive::default()
        .file("gone", "1")
        .file("kept", "1")
        .dir("opaque")
        .file("opaque/below", "1")
        .dir("again")
        .file("again/below", "1")
        .dir("early")
        .file("early/below", "1")
        .finish();
    let upper = Archive::default()
        .file(".wh.gone", "")
        .dir("opaque")
        .file("opaque/.wh..wh..opq", "")
        .file("opaque/above", "2")
        .file(".wh.again", "")
        .dir("again")
        .file("again/above", "2")
        .file("early/above", "2")
        .file(".wh.early", "")
        .file(".wh..wh.plnk", "")
        .finish();
    [lower, upper]
}

pub(super) fn config(layers: &[Vec<u8>]) -> Value {
    let diff_ids: Vec<_> = layers
        .iter()
        .map(|layer| format!("sha256:{}", sha256(layer)))
        .collect();
    json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": {"Env": ["PATH=/bin", "A=b=c"], "User": "7:8", "WorkingDir": "/srv"},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    })
}

/// An archive as `docker save` writes it today: blobs by digest and a manifest.json.
pub(super) fn saved(layers: &[Vec<u8>], config: &Value) -> Archive {
    let config = config.to_string();
    let blob = |bytes: &[u8]| format!("blobs/sha256/{}", sha256(bytes));
    let mut archive = Archive::default().dir("blobs").dir("blobs/sha256");
    for layer in layers {
        archive = archive.file(blob(layer), layer);
    }
    let names: Vec<_> = layers.iter().map(|layer| blob(layer)).collect();
    let manifest =
        json!([{"Config": blob(config.as_bytes()), "RepoTags": ["x:1"], "Layers": names}]);
    archive
        .file(blob(config.as_bytes()), &config)
        .file("manifest.json", manifest.to_string())
}

/// An OCI layout with compressed layers.
fn layout(layers: &[Vec<u8>], blobs: &[Vec<u8>], change: impl Fn(&mut Value)) -> Vec<u8> {
    let config = config(layers).to_string();
    let descriptor =
        |bytes: &[u8]| json!({"digest": format!("sha256:{}", sha256(bytes)), "size": bytes.len()});
    let mut manifest = json!({
        "config": descriptor(config.as_bytes()),
        "layers": blobs.iter().map(|blob| descriptor(blob)).collect::<Vec<_>>(),
    });
    change(&mut manifest);
    let manifest = manifest.to_string();
    let index = json!({"manifests": [
        {"digest": format!("sha256:{}", "0".repeat(64)), "size": 1,
         "platform": {"architecture": "unknown", "os": "unknown"}},
        descriptor(manifest.as_bytes()),
    ]});
    let mut archive = Archive::default().file("oci-layout", r#"{"imageLayoutVersion": "1.0.0"}"#);
    for blob in blobs
        .iter()
        .map(Vec::as_slice)
        .chain([config.as_bytes(), manifest.as_bytes()])
    {
        archive = archive.file(format!("blobs/sha256/{}", sha256(blob)), blob);
    }
    archive.file("index.json", index.to_string()).finish()
}

/// What an overlay of the image shows, mounted as sandboxes mount it: in a user namespace, with `userxattr`.
fn overlay_listing(image: &Image, mountpoint: &Path) -> String {
    let lowers: Vec<_> = image
        .layers
        .iter()
        .rev()
        .map(|layer| layer.path.to_str().expect("text"))
        .collect();
    let script = format!(
        "mount -t overlay -o userxattr,lowerdir={} overlay {mountpoint} && cd {mountpoint} && \
         find . -mindepth 1 | sort",
        lowers.join(":"),
        mountpoint = mountpoint.display(),
    );
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script])
        .output()
        .expect("unshare runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn an_overlay_of_the_layers_hides_what_they_say() {
    let arena = Arena::new();
    let layers = two_layers();
    let image = arena
        .import(&saved(&layers, &config(&layers)).finish())
        .expect("imported");
    assert_eq!(image.layers.len(), 2);
    assert_eq!(
        image.left_out,
        [".wh..wh.plnk: bookkeeping of another system"]
    );
    let mountpoint = tempfile::tempdir().expect("a directory");
    let expected =
        "./again\n./again/above\n./early\n./early/above\n./kept\n./opaque\n./opaque/above\n";
    assert_eq!(overlay_listing(&image, mountpoint.path()), expected);
}

/// Tools other than Docker name members as they please; compressed layers are theirs, too.
#[test]
fn layers_may_have_any_name() {
    let arena = Arena::new();
    let layers = two_layers();
    let digest = arena
        .import(&saved(&layers, &config(&layers)).finish())
        .expect("saved by docker")
        .digest;
    let names = ["layer0/layer.tar", "second.tar.gz"];
    let manifest = json!([{"Config": "sha256:config", "Layers": names}]);
    let archive = Archive::default()
        .dir("layer0")
        .file(names[0], &layers[0])
        .file(names[1], gzip(&layers[1]))
        .file("sha256:config", config(&layers).to_string())
        .file("manifest.json", manifest.to_string())
        .finish();
    assert_eq!(arena.import(&archive).expect("imported").digest, digest);
}

#[test]
fn the_config_is_taken_over() {
    let arena = Arena::new();
    let layers = two_layers();
    let image = arena
        .import(&saved(&layers, &config(&layers)).finish())
        .expect("imported");
    let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(image.env, [variable("PATH", "/bin"), variable("A", "b=c")]);
    assert_eq!(
        (image.user.as_str(), image.workdir.as_str()),
        ("7:8", "/srv")
    );
}

#[test]
fn all_forms_of_an_archive_give_the_same_image() {
    let arena = Arena::new();
    let layers = two_layers();
    let plain = saved(&layers, &config(&layers)).finish();
    let digest = arena.import(&plain).expect("docker save").digest;
    assert_eq!(
        arena.import(&gzip(&plain)).expect("and gzip").digest,
        digest
    );
    let fresh = Arena::new();
    let blobs = [gzip(&layers[0]), zstd(&layers[1])];
    let oci = layout(&layers, &blobs, |_| {});
    assert_eq!(fresh.import(&oci).expect("OCI layout").digest, digest);
    assert_eq!(fresh.import(&zstd(&oci)).expect("and zstd").digest, digest);
    assert_eq!(fresh.store.list().expect("readable").len(), 1);
    assert_eq!(fresh.listing().len(), 2, "each layer is stored once");
}

#[test]
fn older_saves_with_links_between_layers_are_read() {
    let arena = Arena::new();
    let layer = Archive::default().file("f", "1").finish();
    let other = Archive::default().file("g", "1").finish();
    let (a, b, c) = ("a".repeat(64), "b".repeat(64), "c".repeat(64));
    let all = [layer.clone(), other.clone(), layer.clone()];
    let config = config(&all).to_string();
    let config_name = format!("{}.json", sha256(config.as_bytes()));
    let names = [&a, &b, &c].map(|id| format!("{id}/layer.tar"));
    let manifest = json!([{"Config": config_name, "RepoTags": null, "Layers": names}]).to_string();
    let archive = Archive::default()
        .dir(format!("{a}/"))
        .file(format!("{a}/VERSION"), "1.0")
        .file(format!("{a}/json"), "{}")
        .file(format!("{a}/layer.tar"), &layer)
        .file(format!("{b}/layer.tar"), &other)
        .symlink(format!("{c}/layer.tar"), format!("../{a}/layer.tar"))
        .file(&config_name, &config)
        .file("repositories", "{}")
        .file("manifest.json", &manifest)
        .finish();
    let image = arena.import(&archive).expect("imported");
    // One layer at two places: an overlay takes a directory once, and the upper place says it all.
    let order: Vec<_> = image
        .layers
        .iter()
        .map(|layer| layer.diff_id.hex())
        .collect();
    assert_eq!(order, [sha256(&other), sha256(&layer)]);
}

#[test]
fn content_that_is_not_what_its_digest_says_is_refused() {
    let arena = Arena::new();
    let layers = two_layers();
    let honest = saved(&layers, &config(&layers)).finish();
    let at = |needle: &[u8]| {
        honest
            .windows(needle.len())
            .position(|w| w == needle)
            .expect("there")
    };
    for needle in [b"opaque/below".as_slice(), b"WorkingDir"] {
        let mut changed = honest.clone();
        changed[at(needle)] ^= 1;
        assert!(arena.refused(&changed).contains("digest"));
    }
    // A blob that is true to its name, and not what the config says of the layer.
    let mut other = config(&layers);
    other["rootfs"]["diff_ids"][0] = json!(format!("sha256:{}", "1".repeat(64)));
    assert!(
        arena
            .refused(&saved(&layers, &other).finish())
            .contains("config says")
    );
    let blobs = [gzip(&layers[0]), gzip(&layers[1])];
    let wrong_size = layout(&layers, &blobs, |m| m["layers"][0]["size"] = json!(5));
    assert!(arena.refused(&wrong_size).contains("size"));
}

#[test]
fn manifests_that_make_no_image_are_refused() {
    let arena = Arena::new();
    let layers = two_layers();
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut config = config(&layers);
        change(&mut config);
        arena.refused(&saved(&layers, &config).finish())
    };
    assert!(changed(&|c| c["architecture"] = json!("s390x")).contains("linux/s390x"));
    assert!(changed(&|c| c["os"] = json!("windows")).contains("windows"));
    assert!(changed(&|c| c["config"]["Env"] = json!(["NOVALUE"])).contains("NAME=value"));
    assert!(changed(&|c| c["config"]["WorkingDir"] = json!("relative")).contains("absolute"));
    assert!(changed(&|c| c["config"]["User"] = json!("a\nb")).contains("user"));
    assert!(changed(&|c| c["rootfs"]["diff_ids"] = json!(["md5:1"])).contains("SHA-256"));
    assert!(changed(&|c| c["rootfs"]["diff_ids"] = json!([])).contains("number"));
    assert!(
        arena
            .refused(&saved(&[], &config(&[])).finish())
            .contains("no layers")
    );
    let twice = saved(&layers, &config(&layers))
        .file("manifest.json", "[]")
        .finish();
    assert!(arena.refused(&twice).contains("twice"));
    for manifest in ["[]", "{", "[{}]", "null"] {
        arena.refused(&Archive::default().file("manifest.json", manifest).finish());
        arena.refused(&Archive::default().file("index.json", manifest).finish());
    }
}

/// F02: blob names of a manifest that lead out of the archive. They are looked up among its members and nowhere else.
#[test]
fn attack_f02_blob_names_that_lead_out() {
    let arena = Arena::new();
    let canary: PathBuf = arena.outside().join("canary");
    let name = canary.to_str().expect("text");
    for (config, layer) in [
        (name, "x"),
        ("../../outside/canary", "x"),
        ("index.json", name),
    ] {
        let manifest = json!([{"Config": config, "Layers": [layer]}]).to_string();
        let link = format!("{}/layer.tar", "a".repeat(64));
        let archive = Archive::default()
            .symlink(&link, name)
            .symlink(
                format!("blobs/sha256/{}", "b".repeat(64)),
                "../../../outside/canary",
            )
            .file("index.json", "{}")
            .file("manifest.json", manifest);
        arena.refused(&archive.finish());
    }
    let link = format!("{}/layer.tar", "a".repeat(64));
    let manifest = json!([{"Config": link, "Layers": [link]}]).to_string();
    let archive = Archive::default()
        .symlink(&link, name)
        .file("manifest.json", manifest)
        .finish();
    assert!(arena.refused(&archive).contains("missing"));
}

/// F05, F07: whiteouts of names that no file can have, inside of whiteouts, and as what is hidden.
#[test]
fn attack_f05_whiteouts() {
    let arena = Arena::new();
    for name in [
        ".wh.",
        ".wh..",
        ".wh...",
        "d/.wh..",
        ".wh.d/f",
        ".wh.d/.wh.f",
    ] {
        arena.refused(&Archive::default().dir("d").file(name, "").finish());
    }
    // A whiteout through a link would hide a name outside.
    let through = Archive::default().symlink("l", arena.outside().to_str().expect("text"));
    arena.refused(&through.file("l/.wh.canary", "").finish());
    let root = arena.root_of(
        &Archive::default()
            .file(".wh.f", "")
            .file("f", "new")
            .finish(),
    );
    assert_eq!(fs::read(root.join("f")).expect("there"), b"new");
}
