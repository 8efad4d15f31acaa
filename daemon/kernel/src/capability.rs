//! What this process may do beside what its user id allows.

/// CAP_SYS_RESOURCE: raise a limit that was lowered, resize a mounted file system. Root of a container often has not.
pub const SYS_RESOURCE: u32 = 24;

/// Whether it is in effect, by its number in capabilities(7). What cannot be read is not.
pub fn is_effective(capability: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    effective.is_some_and(|mask| mask >> capability & 1 == 1)
}
