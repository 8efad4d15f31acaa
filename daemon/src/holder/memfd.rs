//! What a command gets (arguments, environment, script), in memfds: it goes to the child without passing through the holder's
//! heap, and never through a file or a command line.

use std::ffi::CStr;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};

use lodge_proto::holder::ExecSpec;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use prost::Message as _;
use zeroize::Zeroize as _;

use super::error::HolderError;

/// Longest script that goes as an argument, in bytes. The kernel takes 128 KiB (MAX_ARG_STRLEN) for one argument, the rest is
/// a margin; longer ones go as a memfd that the shell reads.
pub const SCRIPT_ARGUMENT_MAX: usize = 96 * 1024;

/// What a long script begins with, on its own first line so that line numbers stay: it closes the descriptor that the shell
/// was given it on (the shell reads from another one, which its children do not get).
const CLOSE_SCRIPT: &[u8] = b"exec 3<&-; ";

/// The spec, encoded. The child wipes it once it has read it, so writes are not sealed away. `spec` is wiped here.
pub(super) fn spec(mut spec: ExecSpec) -> Result<OwnedFd, HolderError> {
    let mut bytes = spec.encode_to_vec();
    spec.env.zeroize();
    let memfd = sealed(
        c"lodge-exec",
        &[&bytes],
        SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW,
    );
    bytes.zeroize();
    memfd
}

/// A script that the shell reads from a descriptor.
pub(super) fn script(text: &[u8]) -> Result<OwnedFd, HolderError> {
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE;
    sealed(c"lodge-script", &[CLOSE_SCRIPT, text], seals)
}

fn sealed(name: &CStr, parts: &[&[u8]], seals: SealFlag) -> Result<OwnedFd, HolderError> {
    let memfd = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)
        .map_err(HolderError::os("make a memfd"))?;
    let mut file = File::from(memfd);
    for part in parts {
        file.write_all(part)
            .map_err(HolderError::os("fill a memfd"))?;
    }
    fcntl(
        file.as_fd(),
        FcntlArg::F_ADD_SEALS(seals | SealFlag::F_SEAL_SEAL),
    )
    .map_err(HolderError::os("seal a memfd"))?;
    Ok(file.into())
}
