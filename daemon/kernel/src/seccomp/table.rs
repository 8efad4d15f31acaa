//! The table: every system call of x86-64 that this build knows, the answer and the reason.
//!
//! It starts from the allow-list that Docker ships and is closer: see the rows that fail. What is not in it fails with
//! ENOSYS. What a row allows is still subject to the kernel's own checks, within the sandbox's user namespace.

use super::answer::{Answer, Call, Row, Verdict};
use super::checks;

const ALLOW: Answer = Answer::Always(Verdict::Allow);
const NOT_PERMITTED: Answer = Answer::Always(Verdict::Fail(libc::EPERM));
const NOT_THERE: Answer = Answer::Always(Verdict::Fail(libc::ENOSYS));

/// Calls by the names of the C library's constants.
macro_rules! calls {
    ($($name:ident)*) => {
        &[$(Call { name: without_prefix(stringify!($name)), number: libc::$name as u32 }),*]
    };
}

/// `SYS_read` is `read` in the kernel.
const fn without_prefix(constant: &'static str) -> &'static str {
    constant.split_at("SYS_".len()).1
}

/// A call that is newer than the C library's constants.
const fn new_call(name: &'static str, number: u32) -> Call {
    Call { name, number }
}

/// The rows, the plain ones first.
pub(super) static ROWS: &[Row] = &[
    Row {
        answer: ALLOW,
        reason: "files by descriptor: what a program may do with what it has open",
        calls: calls![
            SYS_read SYS_write SYS_close SYS_close_range SYS_fstat SYS_lseek SYS_pread64 SYS_pwrite64
            SYS_readv SYS_writev SYS_preadv SYS_pwritev SYS_preadv2 SYS_pwritev2 SYS_dup SYS_dup2 SYS_dup3
            SYS_fcntl SYS_flock SYS_fsync SYS_fdatasync SYS_sync_file_range SYS_ftruncate SYS_fallocate
            SYS_fadvise64 SYS_readahead SYS_getdents SYS_getdents64 SYS_fchdir SYS_fchmod SYS_fchown
            SYS_fstatfs SYS_syncfs SYS_pipe SYS_pipe2 SYS_copy_file_range
        ],
    },
    Row {
        answer: ALLOW,
        reason: "files by path: the mount tree and the permissions in it decide",
        calls: calls![
            SYS_open SYS_openat SYS_openat2 SYS_creat SYS_stat SYS_lstat SYS_newfstatat SYS_statx SYS_access
            SYS_faccessat SYS_faccessat2 SYS_truncate SYS_chdir SYS_getcwd SYS_rename SYS_renameat
            SYS_renameat2 SYS_mkdir SYS_mkdirat SYS_rmdir SYS_link SYS_linkat SYS_unlink SYS_unlinkat
            SYS_symlink SYS_symlinkat SYS_readlink SYS_readlinkat SYS_chmod SYS_fchmodat SYS_fchmodat2
            SYS_chown SYS_lchown SYS_fchownat SYS_umask SYS_utime SYS_utimes SYS_futimesat SYS_utimensat
            SYS_statfs SYS_sync
        ],
    },
    Row {
        answer: ALLOW,
        reason: "fifos and plain files; the kernel refuses devices to every user namespace",
        calls: calls![SYS_mknod SYS_mknodat],
    },
    Row {
        answer: ALLOW,
        reason: "extended attributes; trusted.* and foreign security.* stay out of a user namespace's reach",
        calls: calls![
            SYS_setxattr SYS_lsetxattr SYS_fsetxattr SYS_getxattr SYS_lgetxattr SYS_fgetxattr SYS_listxattr
            SYS_llistxattr SYS_flistxattr SYS_removexattr SYS_lremovexattr SYS_fremovexattr
        ],
    },
    Row {
        answer: ALLOW,
        reason: "the same by directory descriptor",
        calls: &[
            new_call("setxattrat", 463),
            new_call("getxattrat", 464),
            new_call("listxattrat", 465),
            new_call("removexattrat", 466),
        ],
    },
    Row {
        answer: ALLOW,
        reason: "sandbox root is confined by its mount tree, not by this call: debootstrap and tests use it",
        calls: calls![SYS_chroot],
    },
    Row {
        answer: ALLOW,
        reason: "a handle is an inode number; opening one is refused below",
        calls: calls![SYS_name_to_handle_at],
    },
    Row {
        answer: ALLOW,
        reason: "watching files; instances count against the sandbox's own uid",
        calls: calls![SYS_inotify_init SYS_inotify_init1 SYS_inotify_add_watch SYS_inotify_rm_watch],
    },
    Row {
        answer: ALLOW,
        reason: "copying inside the kernel: pv, Go and coreutils use it; page-cache bugs need vmsplice as well or a \
                 socket that is refused below",
        calls: calls![SYS_sendfile SYS_splice SYS_tee],
    },
    Row {
        answer: ALLOW,
        reason: "memory of the process itself; the memory group counts it",
        calls: calls![
            SYS_mmap SYS_mprotect SYS_munmap SYS_brk SYS_mremap SYS_msync SYS_mincore SYS_madvise SYS_mlock
            SYS_mlock2 SYS_munlock SYS_mlockall SYS_munlockall SYS_remap_file_pages SYS_memfd_create
            SYS_pkey_mprotect SYS_pkey_alloc SYS_pkey_free SYS_membarrier SYS_mseal
        ],
    },
    Row {
        answer: ALLOW,
        reason: "newer memory calls of C libraries: page cache statistics, shadow stacks",
        calls: &[
            new_call("cachestat", 451),
            new_call("map_shadow_stack", 453),
        ],
    },
    Row {
        answer: ALLOW,
        reason: "starting, ending and waiting for processes; PID 1 of the sandbox needs all of it too",
        calls: calls![
            SYS_fork SYS_vfork SYS_execve SYS_execveat SYS_exit SYS_exit_group SYS_wait4 SYS_waitid
            SYS_getpid SYS_getppid SYS_gettid SYS_set_tid_address SYS_restart_syscall SYS_arch_prctl
            SYS_prctl SYS_setpgid SYS_getpgid SYS_getpgrp SYS_setsid SYS_getsid
        ],
    },
    Row {
        answer: ALLOW,
        reason: "PID 1 starts each run in its own group (CLONE_INTO_CGROUP); the program of each run closes it again",
        calls: calls![SYS_clone3],
    },
    Row {
        answer: ALLOW,
        reason: "pidfds of one's own pid namespace, and signals through them",
        calls: calls![SYS_pidfd_open SYS_pidfd_send_signal SYS_process_mrelease],
    },
    Row {
        answer: ALLOW,
        reason: "signals inside the pid namespace",
        calls: calls![
            SYS_kill SYS_tkill SYS_tgkill SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn
            SYS_rt_sigpending SYS_rt_sigtimedwait SYS_rt_sigqueueinfo SYS_rt_tgsigqueueinfo
            SYS_rt_sigsuspend SYS_sigaltstack SYS_signalfd SYS_signalfd4 SYS_pause SYS_alarm
        ],
    },
    Row {
        answer: ALLOW,
        reason: "threads and their locks",
        calls: calls![
            SYS_futex SYS_futex_waitv SYS_set_robust_list SYS_get_robust_list SYS_rseq SYS_getcpu
        ],
    },
    Row {
        answer: ALLOW,
        reason: "newer futex calls of C libraries",
        calls: &[
            new_call("futex_wake", 454),
            new_call("futex_wait", 455),
            new_call("futex_requeue", 456),
        ],
    },
    Row {
        answer: ALLOW,
        reason: "scheduling within the cpu limit; real-time classes and lower nice values need host rights",
        calls: calls![
            SYS_sched_yield SYS_sched_setparam SYS_sched_getparam SYS_sched_setscheduler
            SYS_sched_getscheduler SYS_sched_get_priority_max SYS_sched_get_priority_min
            SYS_sched_rr_get_interval SYS_sched_setaffinity SYS_sched_getaffinity SYS_sched_setattr
            SYS_sched_getattr SYS_getpriority SYS_setpriority SYS_ioprio_set SYS_ioprio_get
        ],
    },
    Row {
        answer: ALLOW,
        reason: "ids inside the user namespace: sudo, su and apt change them",
        calls: calls![
            SYS_getuid SYS_getgid SYS_geteuid SYS_getegid SYS_getresuid SYS_getresgid SYS_getgroups
            SYS_setuid SYS_setgid SYS_setreuid SYS_setregid SYS_setresuid SYS_setresgid SYS_setgroups
            SYS_setfsuid SYS_setfsgid SYS_capget SYS_capset
        ],
    },
    Row {
        answer: ALLOW,
        reason: "resource limits: hard ones can only be lowered",
        calls: calls![SYS_getrlimit SYS_setrlimit SYS_prlimit64 SYS_getrusage SYS_times SYS_sysinfo SYS_uname],
    },
    Row {
        answer: ALLOW,
        reason: "more confinement is always welcome: browsers and build tools sandbox themselves further",
        calls: calls![
            SYS_seccomp SYS_landlock_create_ruleset SYS_landlock_add_rule SYS_landlock_restrict_self
        ],
    },
    Row {
        answer: ALLOW,
        reason: "debuggers: gdb and strace are agent tools, and see only what the namespaces show",
        calls: calls![SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev],
    },
    Row {
        answer: ALLOW,
        reason: "the kernel puts these into traced programs itself",
        calls: &[new_call("uretprobe", 335), new_call("uprobe", 336)],
    },
    Row {
        answer: ALLOW,
        reason: "reading clocks and sleeping; adjtimex only reads without host rights",
        calls: calls![
            SYS_time SYS_gettimeofday SYS_clock_gettime SYS_clock_getres SYS_clock_nanosleep SYS_nanosleep
            SYS_adjtimex
        ],
    },
    Row {
        answer: ALLOW,
        reason: "timers of the process itself",
        calls: calls![
            SYS_getitimer SYS_setitimer SYS_timer_create SYS_timer_settime SYS_timer_gettime
            SYS_timer_getoverrun SYS_timer_delete SYS_timerfd_create SYS_timerfd_settime
            SYS_timerfd_gettime
        ],
    },
    Row {
        answer: ALLOW,
        reason: "waiting for descriptors",
        calls: calls![
            SYS_poll SYS_ppoll SYS_select SYS_pselect6 SYS_epoll_create SYS_epoll_create1 SYS_epoll_ctl
            SYS_epoll_wait SYS_epoll_pwait SYS_epoll_pwait2 SYS_eventfd SYS_eventfd2
        ],
    },
    Row {
        answer: ALLOW,
        reason: "sockets that `socket` let through; the network namespace bounds them",
        calls: calls![
            SYS_connect SYS_accept SYS_accept4 SYS_bind SYS_listen SYS_shutdown SYS_getsockname
            SYS_getpeername SYS_getsockopt SYS_sendto SYS_recvfrom SYS_sendmsg SYS_recvmsg SYS_sendmmsg
            SYS_recvmmsg
        ],
    },
    Row {
        answer: ALLOW,
        reason: "System V and POSIX ipc: the ipc namespace bounds it, and it ends with the sandbox",
        calls: calls![
            SYS_shmget SYS_shmat SYS_shmctl SYS_shmdt SYS_semget SYS_semop SYS_semctl SYS_semtimedop
            SYS_msgget SYS_msgsnd SYS_msgrcv SYS_msgctl SYS_mq_open SYS_mq_unlink SYS_mq_timedsend
            SYS_mq_timedreceive SYS_mq_notify SYS_mq_getsetattr
        ],
    },
    Row {
        answer: ALLOW,
        reason: "random bytes",
        calls: calls![SYS_getrandom],
    },
    // Arguments decide.
    Row {
        answer: Answer::Check(&checks::CLONE),
        reason: "no namespace inside a sandbox",
        calls: calls![SYS_clone],
    },
    Row {
        answer: Answer::Check(&checks::SOCKET),
        reason: "families and protocols that no namespace contains, or whose kernel code is a known risk",
        calls: calls![SYS_socket],
    },
    Row {
        answer: Answer::Check(&checks::SOCKETPAIR),
        reason: "no way round the row above",
        calls: calls![SYS_socketpair],
    },
    Row {
        answer: Answer::Check(&checks::SETSOCKOPT),
        reason: "kernel TLS and ESP encapsulation",
        calls: calls![SYS_setsockopt],
    },
    Row {
        answer: Answer::Check(&checks::IOCTL),
        reason: "typing into terminals, line disciplines, btrfs below the disk limit",
        calls: calls![SYS_ioctl],
    },
    Row {
        answer: Answer::Check(&checks::PERSONALITY),
        reason: "old execution domains",
        calls: calls![SYS_personality],
    },
    // Refused: EPERM where a program asks for a right, ENOSYS where it should fall back to something else.
    Row {
        answer: NOT_PERMITTED,
        reason: "namespaces: nesting gives back capabilities, and with them kernel code",
        calls: calls![SYS_unshare SYS_setns],
    },
    Row {
        answer: NOT_PERMITTED,
        reason: "mounts: proc, sysfs, overlay and binfmt_misc could be mounted by sandbox root",
        calls: calls![
            SYS_mount SYS_umount2 SYS_pivot_root SYS_fsopen SYS_fsconfig SYS_fsmount SYS_fspick
            SYS_open_tree SYS_move_mount SYS_mount_setattr
        ],
    },
    Row {
        answer: NOT_PERMITTED,
        reason: "mounts, again",
        calls: &[new_call("open_tree_attr", 467)],
    },
    Row {
        answer: NOT_PERMITTED,
        reason: "the host's swap, accounting, quotas, names, clock, log, terminals and power",
        calls: calls![
            SYS_swapon SYS_swapoff SYS_acct SYS_quotactl SYS_quotactl_fd SYS_sethostname SYS_setdomainname
            SYS_settimeofday SYS_clock_settime SYS_clock_adjtime SYS_syslog SYS_vhangup SYS_reboot
        ],
    },
    Row {
        answer: NOT_PERMITTED,
        reason: "the host's kernel",
        calls: calls![
            SYS_kexec_load SYS_kexec_file_load SYS_init_module SYS_finit_module SYS_delete_module
        ],
    },
    Row {
        answer: NOT_PERMITTED,
        reason: "kernel code of high risk and no use to agents",
        calls: calls![
            SYS_bpf SYS_perf_event_open SYS_fanotify_init SYS_fanotify_mark SYS_kcmp SYS_pidfd_getfd
            SYS_process_madvise
        ],
    },
    Row {
        answer: NOT_PERMITTED,
        reason: "placing memory on nodes is the host's business; Docker refuses it as well",
        calls: calls![
            SYS_mbind SYS_set_mempolicy SYS_get_mempolicy SYS_migrate_pages SYS_move_pages
            SYS_set_mempolicy_home_node
        ],
    },
    Row {
        answer: NOT_PERMITTED,
        reason: "opens files by inode number, outside the mount tree",
        calls: calls![SYS_open_by_handle_at],
    },
    Row {
        answer: NOT_THERE,
        reason: "opens sockets and files past this filter; runtimes fall back to epoll",
        calls: calls![SYS_io_uring_setup SYS_io_uring_enter SYS_io_uring_register],
    },
    Row {
        answer: NOT_THERE,
        reason: "events come from one pool of the whole host, which one sandbox can take",
        calls: calls![SYS_io_setup SYS_io_destroy SYS_io_getevents SYS_io_submit SYS_io_cancel],
    },
    Row {
        answer: NOT_THERE,
        reason: "the same pool",
        calls: &[new_call("io_pgetevents", 333)],
    },
    Row {
        answer: NOT_THERE,
        reason: "user pages in pipes: part of every page-cache bug of late; programs write instead",
        calls: calls![SYS_vmsplice],
    },
    Row {
        answer: NOT_THERE,
        reason: "stops kernel code at a page fault, the first step of many exploits",
        calls: calls![SYS_userfaultfd],
    },
    Row {
        answer: NOT_THERE,
        reason: "keyrings belong to uids, not to containers",
        calls: calls![SYS_add_key SYS_request_key SYS_keyctl],
    },
    Row {
        answer: NOT_THERE,
        reason: "memory that the host cannot inspect",
        calls: calls![SYS_memfd_secret],
    },
    Row {
        answer: NOT_THERE,
        reason: "mounts are read from /proc/self/mountinfo",
        calls: &[new_call("statmount", 457), new_call("listmount", 458)],
    },
    Row {
        answer: NOT_THERE,
        reason: "the host's security modules",
        calls: &[
            new_call("lsm_get_self_attr", 459),
            new_call("lsm_set_self_attr", 460),
            new_call("lsm_list_modules", 461),
        ],
    },
    Row {
        answer: NOT_THERE,
        reason: "old, dangerous or never there",
        calls: calls![
            SYS_modify_ldt SYS_iopl SYS_ioperm SYS_uselib SYS_ustat SYS_sysfs SYS__sysctl SYS_nfsservctl
            SYS_getpmsg SYS_putpmsg SYS_afs_syscall SYS_tuxcall SYS_security SYS_vserver
            SYS_set_thread_area SYS_get_thread_area SYS_epoll_ctl_old SYS_epoll_wait_old
            SYS_lookup_dcookie
        ],
    },
];

/// The rows as one list, sorted by number.
pub(super) fn answers() -> Vec<(u32, Answer)> {
    let numbered = |row: &Row| {
        let answer = row.answer;
        row.calls.iter().map(move |call| (call.number, answer))
    };
    let mut answers: Vec<_> = ROWS.iter().flat_map(numbered).collect();
    answers.sort_unstable_by_key(|&(number, _)| number);
    answers
}
