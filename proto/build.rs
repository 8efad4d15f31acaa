//! Generates the Rust types from the .proto files with protox, so that no protoc is needed.

use std::error::Error;
use std::path::PathBuf;

use prost::Message as _;

const API: &[&str] = &[
    "lodge/v1/sandbox.proto",
    "lodge/v1/exec.proto",
    "lodge/v1/image.proto",
    "lodge/v1/node.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=lodge");
    println!("cargo:rerun-if-changed=holder");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);

    let api = protox::compile(API, ["."])?;
    std::fs::write(out.join("lodge_v1.bin"), api.encode_to_vec())?;
    tonic_prost_build::configure()
        .bytes(".lodge.v1")
        // Its `Debug` is by hand, without the value.
        .skip_debug([".lodge.v1.EnvVar"])
        .build_server(std::env::var_os("CARGO_FEATURE_SERVER").is_some())
        .build_client(std::env::var_os("CARGO_FEATURE_CLIENT").is_some())
        .compile_fds(api)?;

    let holder = protox::compile(["holder/v1/holder.proto"], ["."])?;
    prost_build::Config::new()
        // Its `Debug` is by hand, without command and environment.
        .skip_debug([".lodge.holder.v1.ExecSpec"])
        .compile_fds(holder)?;
    Ok(())
}
