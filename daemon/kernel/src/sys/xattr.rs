//! getxattr(2) with a small bound, and setxattr(2).

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use nix::errno::Errno;

use super::check;

/// Bytes: the attributes read here are flags of one character.
const VALUE_BYTES: usize = 64;

/// The value of an extended attribute of at most 64 bytes.
pub(crate) fn get(path: &Path, name: &CStr) -> nix::Result<Vec<u8>> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?;
    let mut value = vec![0_u8; VALUE_BYTES];
    // SAFETY: both strings end in NUL and outlive the call; the kernel writes at most `value.len()` bytes to `value`.
    let ret = unsafe {
        libc::getxattr(
            path.as_ptr(),
            name.as_ptr(),
            value.as_mut_ptr().cast(),
            value.len(),
        )
    };
    let length = check(ret as libc::c_long)?;
    value.truncate(usize::try_from(length).unwrap_or(0));
    Ok(value)
}

/// Sets an extended attribute, whether it is there or not.
pub(crate) fn set(path: &Path, name: &CStr, value: &[u8]) -> nix::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?;
    // SAFETY: both strings end in NUL and outlive the call; the kernel reads `value.len()` bytes of `value`.
    let ret = unsafe {
        libc::setxattr(
            path.as_ptr(),
            name.as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            0,
        )
    };
    check(libc::c_long::from(ret)).map(drop)
}
