//! Answers that depend on arguments. Each is a short list of tests, taken in order; the first that holds decides.
//!
//! All compared arguments are 32-bit in the kernel, which ignores the upper half of the register: so does each test here
//! (CVE-2019-10063 compared 64 bits and was passed by garbage in the upper half). Pointers are never followed: what
//! lies behind one can change after the check.

use super::answer::Verdict::{self, Allow, Fail};

/// A named list of tests on the arguments of one call.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Check {
    /// For the printed table.
    pub(super) name: &'static str,
    /// Taken in order.
    pub(super) tests: &'static [Test],
    /// When no test holds.
    pub(super) otherwise: Verdict,
}

/// A verdict and when it is given.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Test {
    /// All must hold.
    pub(super) when: &'static [Condition],
    /// What then happens.
    pub(super) verdict: Verdict,
}

/// `argument & mask` is one of `values`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Condition {
    /// Which argument, from 0.
    pub(super) argument: u32,
    /// Which bits of its lower half count.
    pub(super) mask: u32,
    /// What they may be.
    pub(super) values: &'static [u32],
    /// Whether being one of them, or being none of them, makes the condition hold.
    pub(super) holds: Holds,
}

/// The direction of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holds {
    /// The masked argument is one of the values.
    IfListed,
    /// It is none of them.
    IfNotListed,
}

const ALL_BITS: u32 = u32::MAX;

/// The argument is one of these values.
const fn is(argument: u32, values: &'static [u32]) -> Condition {
    masked(argument, ALL_BITS, values)
}

/// The argument is none of these values.
const fn is_not(argument: u32, values: &'static [u32]) -> Condition {
    Condition {
        argument,
        mask: ALL_BITS,
        values,
        holds: Holds::IfNotListed,
    }
}

/// The masked argument is one of these values.
const fn masked(argument: u32, mask: u32, values: &'static [u32]) -> Condition {
    Condition {
        argument,
        mask,
        values,
        holds: Holds::IfListed,
    }
}

/// The masked argument is none of these values.
const fn masked_not(argument: u32, mask: u32, values: &'static [u32]) -> Condition {
    Condition {
        argument,
        mask,
        values,
        holds: Holds::IfNotListed,
    }
}

/// NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET; NEWTIME (0x80) is part of the exit signal in clone(2).
const NEW_NAMESPACE_BITS: u32 = 0x7E02_0000;

/// A namespace inside a sandbox brings back capabilities, and with them kernel code that nobody there should reach.
pub(super) static CLONE: Check = Check {
    name: "no new namespaces",
    tests: &[Test {
        when: &[masked(0, NEW_NAMESPACE_BITS, &[0])],
        verdict: Allow,
    }],
    otherwise: Fail(libc::EPERM),
};

const UNIX: u32 = 1;
const INET: u32 = 2;
const INET6: u32 = 10;
const NETLINK: u32 = 16;
/// Lower bits of the type; SOCK_NONBLOCK and SOCK_CLOEXEC are above them (SOCK_TYPE_MASK).
const TYPE_BITS: u32 = 0xF;
const STREAM: u32 = 1;
const DGRAM: u32 = 2;
const RAW: u32 = 3;
/// Default, ICMP (ping by datagram), TCP, UDP, ICMPv6. Not here: DCCP 33, L2TP 115, SCTP 132, UDPLITE 136, MPTCP 262.
const INET_PROTOCOLS: [u32; 5] = [0, 1, 6, 17, 58];
/// ROUTE (interfaces and addresses) and SOCK_DIAG (`ss`). Not here: XFRM, NETFILTER, AUDIT, GENERIC, CRYPTO.
const NETLINK_PROTOCOLS: [u32; 2] = [0, 4];

/// The families that agents need. VSOCK leads to a virtual machine's host and no namespace contains it; ALG, PACKET, XDP,
/// RDS, TIPC and others are kernel code with a record of holes. The INET types are listed because a type alone can
/// pick a protocol (SOCK_DCCP, SOCK_SEQPACKET) or even another family (SOCK_PACKET).
pub(super) static SOCKET: Check = Check {
    name: "unix, inet, inet6, netlink route and diag",
    tests: &[
        Test {
            when: &[is(0, &[UNIX])],
            verdict: Allow,
        },
        Test {
            when: &[is(0, &[NETLINK]), is(2, &NETLINK_PROTOCOLS)],
            verdict: Allow,
        },
        Test {
            when: &[is(0, &[NETLINK])],
            verdict: Fail(libc::EPROTONOSUPPORT),
        },
        Test {
            when: &[is_not(0, &[INET, INET6])],
            verdict: Fail(libc::EAFNOSUPPORT),
        },
        Test {
            when: &[masked(1, TYPE_BITS, &[RAW])],
            verdict: Fail(libc::EPERM),
        },
        Test {
            when: &[is_not(2, &INET_PROTOCOLS)],
            verdict: Fail(libc::EPROTONOSUPPORT),
        },
        Test {
            when: &[masked_not(1, TYPE_BITS, &[STREAM, DGRAM])],
            verdict: Fail(libc::ESOCKTNOSUPPORT),
        },
    ],
    otherwise: Allow,
};

/// Every other family fails in the kernel anyway, after running its code.
pub(super) static SOCKETPAIR: Check = Check {
    name: "unix only",
    tests: &[Test {
        when: &[is(0, &[UNIX])],
        verdict: Allow,
    }],
    otherwise: Fail(libc::EAFNOSUPPORT),
};

const IPPROTO_TCP: u32 = 6;
const TCP_ULP: u32 = 31;
const IPPROTO_UDP: u32 = 17;
const UDP_ENCAP: u32 = 100;

/// Kernel TLS and ESP in TCP or UDP: page-cache bugs of 2026. TLS libraries fall back to their own code.
pub(super) static SETSOCKOPT: Check = Check {
    name: "no TCP_ULP, no UDP_ENCAP",
    tests: &[
        Test {
            when: &[is(1, &[IPPROTO_TCP]), is(2, &[TCP_ULP])],
            verdict: Fail(libc::ENOPROTOOPT),
        },
        Test {
            when: &[is(1, &[IPPROTO_UDP]), is(2, &[UDP_ENCAP])],
            verdict: Fail(libc::ENOPROTOOPT),
        },
    ],
    otherwise: Allow,
};

const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541C;
const TIOCSETD: u32 = 0x5423;
/// The magic byte of btrfs, which the three generic calls below share.
const MAGIC_BITS: u32 = 0x0000_FF00;
const BTRFS_MAGIC: u32 = 0x0000_9400;
/// `_IOW(0x94, 9, int)`
const FICLONE: u32 = 0x4004_9409;
/// `_IOW(0x94, 13, struct file_clone_range)`
const FICLONERANGE: u32 = 0x4020_940D;
/// `_IOWR(0x94, 54, struct file_dedupe_range)`
const FIDEDUPERANGE: u32 = 0xC018_9436;

/// TIOCSTI and TIOCLINUX type into another process's terminal; TIOCSETD loads line disciplines, kernel code that only
/// modems need. Subvolumes and snapshots made from inside btrfs escape the disk limit; copies by reference do not.
pub(super) static IOCTL: Check = Check {
    name: "no TIOCSTI, TIOCLINUX, TIOCSETD, no btrfs but clone and dedupe",
    tests: &[
        Test {
            when: &[is(1, &[TIOCSTI, TIOCLINUX, TIOCSETD])],
            verdict: Fail(libc::EPERM),
        },
        Test {
            when: &[masked_not(1, MAGIC_BITS, &[BTRFS_MAGIC])],
            verdict: Allow,
        },
        Test {
            when: &[is(1, &[FICLONE, FICLONERANGE, FIDEDUPERANGE])],
            verdict: Allow,
        },
    ],
    otherwise: Fail(libc::EPERM),
};

const PER_LINUX: u32 = 0;
const PER_LINUX32: u32 = 8;
const UNAME26: u32 = 0x0002_0000;
const QUERY: u32 = 0xFFFF_FFFF;

/// Other personalities switch on old behaviour, of address space layout among others.
pub(super) static PERSONALITY: Check = Check {
    name: "linux, linux32, each with uname26, query",
    tests: &[Test {
        when: &[is(
            0,
            &[
                PER_LINUX,
                PER_LINUX32,
                UNAME26,
                UNAME26 | PER_LINUX32,
                QUERY,
            ],
        )],
        verdict: Allow,
    }],
    otherwise: Fail(libc::EPERM),
};
