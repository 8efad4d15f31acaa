//! The launcher and the holder against the real kernel, without the daemon: a sandbox is made from a few of the host's own programs, and
//! a run's end, deadline and isolation are looked at through the protocol alone. Needs root.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

use lodge_holder::protocol::{self, Fds, MAX_PACKET};
use lodge_kernel::cgroup::{Host, Limits, Parent, SandboxGroup};
use lodge_kernel::sys::packet::Wait;
use lodge_proto::holder::{
    ExecSpec, Exited, FdRole, FromHolder, Hello, Launch, Launched, Spawn, ToHolder, from_holder,
    to_holder,
};
use nix::fcntl::OFlag;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket, socketpair,
};
use nix::sys::stat::Mode;
use nix::unistd::pipe2;

/// Host ids of the test's sandboxes: far from everybody else's.
const UID_BASE: u32 = 3_000_000_000;

/// Programs of the host that the sandbox's root file system is made of.
const PROGRAMS: &[&str] = &[
    "/bin/bash",
    "/bin/cat",
    "/bin/sleep",
    "/usr/bin/id",
    "/bin/ls",
    "/bin/mkdir",
    "/bin/rm",
    "/usr/bin/readlink",
];

struct Room {
    _dir: tempfile::TempDir,
    group: SandboxGroup,
    residue: Residue,
    daemon_end: OwnedFd,
    holder: i32,
    launcher: std::thread::JoinHandle<()>,
    runs: u32,
}

/// What a test leaves in the cgroup tree, gone also when it fails.
struct Residue(Parent, String);

impl Residue {
    fn sweep(&self) {
        self.0.discard(&self.1).unwrap();
    }
}

impl Drop for Residue {
    fn drop(&mut self) {
        let _ = self.0.discard(&self.1);
        self.0.leave();
    }
}

/// Copies programs with their libraries into a directory that then serves as an image.
fn make_root(root: &Path) {
    for dir in ["bin", "usr/bin", "lib", "lib64", "etc", "home", "root"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    for program in PROGRAMS {
        let listed = Command::new("ldd").arg(program).output().expect("ldd");
        let text = String::from_utf8(listed.stdout).unwrap();
        let libraries = text.split_whitespace().filter(|word| word.starts_with('/'));
        for file in libraries.chain([*program]) {
            let target = root.join(file.trim_start_matches('/'));
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            fs::copy(file, target).unwrap();
        }
    }
    fs::write(
        root.join("etc/passwd"),
        "root:x:0:0::/root:/bin/bash\nuser:x:1000:1000::/home:/bin/bash\n",
    )
    .unwrap();
}

fn directory(path: &Path) -> OwnedFd {
    nix::fcntl::open(
        path,
        OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        Mode::empty(),
    )
    .unwrap()
}

fn listener(path: &PathBuf) -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
    bind(listener.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
    listen(&listener, Backlog::new(4).unwrap()).unwrap();
    listener
}

/// The descriptors of a launch, but for the sockets.
fn launch_fds(group: &SandboxGroup, lower: &Path, layer: &Path) -> Fds {
    let mut fds = Fds::default();
    let cgroup = group.launch_fds().unwrap();
    fds.push(FdRole::Lower, directory(lower));
    fds.push(FdRole::Writable, directory(layer));
    fds.push(FdRole::CgroupSandbox, cgroup.sandbox);
    fds.push(FdRole::CgroupHolder, cgroup.holder);
    cgroup
        .v1_sandbox
        .into_iter()
        .for_each(|fd| fds.push(FdRole::V1TasksSandbox, fd));
    cgroup
        .v1_holder
        .into_iter()
        .for_each(|fd| fds.push(FdRole::V1TasksHolder, fd));
    cgroup
        .v1_runs
        .into_iter()
        .for_each(|fd| fds.push(FdRole::V1TasksRuns, fd));
    fds
}

impl Room {
    /// Starts a launcher in a process of its own (the test program has threads) and a sandbox in it.
    fn make(name: &str) -> Self {
        Self::make_with(name, 0)
    }

    /// The same, on top of so many more layers.
    fn make_with(name: &str, more_layers: usize) -> Self {
        assert!(
            nix::unistd::geteuid().is_root(),
            "this test makes sandboxes: run it as root"
        );
        let dir = tempfile::tempdir().unwrap();
        let (lower, layer) = (dir.path().join("lower"), dir.path().join("layer"));
        make_root(&lower);
        for part in ["upper", "work"] {
            fs::create_dir_all(layer.join(part)).unwrap();
        }
        let limits = Limits {
            memory_bytes: 256 << 20,
            pids: 64,
            cpu_millis: 1000,
        };
        let parent = Host::detect()
            .unwrap()
            .parent(&format!("lodge-holder-{name}"))
            .unwrap();
        let residue = Residue(parent, name.to_owned());
        residue.sweep();
        let group = residue.0.create(name, UID_BASE, &limits).unwrap();
        let flags = SockFlag::SOCK_CLOEXEC;
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        let launcher = std::thread::spawn(move || {
            let exe = env!("CARGO_BIN_EXE_launcher");
            let status = Command::new(exe).stdin(theirs).status().unwrap();
            assert!(status.success(), "the launcher ended with {status}");
        });
        let (daemon_end, holder_end) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        let mut fds = launch_fds(&group, &lower, &layer);
        for n in 0..more_layers {
            let lower = dir.path().join(format!("more{n}"));
            fs::create_dir(&lower).unwrap();
            fds.push(FdRole::Lower, directory(&lower));
        }
        fds.push(FdRole::Listener, listener(&dir.path().join("holder.sock")));
        fds.push(FdRole::Connection, holder_end);
        let launch = Launch {
            request: 1,
            uid_base: UID_BASE,
            hostname: "room".into(),
            shm_bytes: 1 << 20,
            open_files: 256,
            etc_hosts: b"127.0.0.1 localhost\n".to_vec(),
            etc_resolv_conf: Vec::new(),
            no_new_privileges: false,
            read_only_root: false,
            fds: fds.roles(),
        };
        protocol::send(ours.as_fd(), &launch, &fds.borrowed(), Wait::Yes).unwrap();
        let mut buffer = vec![0; MAX_PACKET];
        let (launched, _) =
            protocol::receive::<Launched>(ours.as_fd(), &mut buffer, Wait::Yes).unwrap();
        assert_eq!(launched.failure, None, "the sandbox was not made");
        assert!(launched.pid > 0);
        Self {
            _dir: dir,
            group,
            residue,
            daemon_end,
            holder: launched.pid,
            launcher,
            runs: 0,
        }
    }

    /// Runs a script as root of the sandbox; returns its end and its standard output and error together.
    fn run(&mut self, script: &str, timeout_ms: u64) -> (Exited, String) {
        self.runs += 1;
        let id = format!("run{}", self.runs);
        let leaf = self.group.create_run(&id).unwrap();
        let mut fds = Fds::default();
        let spawn_fds = leaf.spawn_fds().unwrap();
        fds.push(FdRole::Leaf, spawn_fds.leaf);
        fds.push(FdRole::LeafKill, spawn_fds.kill);
        spawn_fds
            .v1_tasks
            .into_iter()
            .for_each(|fd| fds.push(FdRole::V1TasksLeaf, fd));
        let spec = ExecSpec {
            argv: vec![script.into()],
            shell: true,
            user: "root".into(),
            ..ExecSpec::default()
        };
        let memfd =
            nix::sys::memfd::memfd_create(c"spec", nix::sys::memfd::MFdFlags::MFD_CLOEXEC).unwrap();
        nix::unistd::write(&memfd, &prost::Message::encode_to_vec(&spec)).unwrap();
        fds.push(FdRole::ExecSpec, memfd);
        let (read, write) = pipe2(OFlag::O_CLOEXEC).unwrap();
        fds.push(FdRole::Stderr, write.try_clone().unwrap());
        fds.push(FdRole::Stdout, write);
        let spawn = Spawn {
            run_id: id.clone(),
            timeout_ms,
            grace_ms: 300,
            kill_on_exit: true,
        };
        let message = ToHolder {
            message: Some(to_holder::Message::Spawn(spawn)),
            fds: fds.roles(),
        };
        protocol::send(
            self.daemon_end.as_fd(),
            &message,
            &fds.borrowed(),
            Wait::Yes,
        )
        .unwrap();
        drop(fds);
        let mut output = String::new();
        File::from(read).read_to_string(&mut output).unwrap();
        let mut buffer = vec![0; MAX_PACKET];
        let (answer, _) =
            protocol::receive::<FromHolder>(self.daemon_end.as_fd(), &mut buffer, Wait::Yes)
                .unwrap();
        match answer.message {
            Some(from_holder::Message::Exited(exited)) => {
                assert_eq!(exited.run_id, id);
                (exited, output)
            }
            other => panic!("expected the end of {id}, got {other:?}"),
        }
    }

    fn end(self) {
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(self.holder),
            nix::sys::signal::Signal::SIGKILL,
        )
        .unwrap();
        self.group.remove().unwrap();
        drop(self.residue);
        drop(self.daemon_end);
        self.launcher.join().unwrap();
    }
}

#[test]
fn a_sandbox_runs_commands_and_reports_each_end_once() {
    let mut room = Room::make("ends");
    let (exited, output) = room.run("echo hello; exit 3", 0);
    assert_eq!((exited.wait_status, output.as_str()), (3 << 8, "hello\n"));
    let (exited, _) = room.run("kill -9 $$", 0);
    assert_eq!(exited.wait_status, 9);
    let (exited, output) = room.run("echo part; sleep 60", 200);
    assert!(exited.timed_out);
    assert_eq!(output, "part\n");
    let (exited, _) = room.run("trap '' TERM; while :; do sleep 1; done", 200);
    assert!(exited.timed_out);
    assert_eq!(
        exited.wait_status & 0x7f,
        9,
        "what ignores SIGTERM is killed after the grace"
    );
    room.end();
}

#[test]
fn a_sandbox_sees_only_itself() {
    let mut room = Room::make("walls");
    let (_, output) = room.run(
        "id -u; echo $$; read x </proc/1/comm; echo $x; echo $HOSTNAME",
        5000,
    );
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(
        (lines[0], lines[2], lines[3]),
        ("0", "lodge-holder", "room"),
        "{output}"
    );
    let (_, output) = room.run(
        "cat /proc/1/environ; ls /proc/1/fd; readlink /proc/1/exe",
        5000,
    );
    assert!(
        output.matches("Permission denied").count() >= 2,
        "PID 1 is open to its sandbox's root: {output}"
    );
    let (_, output) = room.run(
        "echo 1 >/proc/sys/kernel/panic; ls /proc/[0-9]*/ -d; ls /proc/self/fd",
        5000,
    );
    assert!(output.contains("Read-only file system"), "{output}");
    let (_, output) = room.run("echo x >/new; cat /new /etc/hostname /dev/null; ls /", 5000);
    assert!(output.starts_with("x\nroom\n"), "{output}");
    room.end();
}

/// Whatever the daemon was started with, and whatever the C library keeps to itself.
#[test]
fn a_command_starts_with_every_signal_at_its_default() {
    let mut room = Room::make("signals");
    let (_, status) = room.run("exec cat /proc/self/status", 5000);
    for set in ["SigIgn:", "SigBlk:"] {
        let line = status.lines().find(|line| line.starts_with(set));
        assert_eq!(line, Some(&*format!("{set}\t0000000000000000")));
    }
    room.end();
}

/// Root must get in to mend a broken /etc/passwd.
#[test]
fn root_needs_no_account_file() {
    let mut room = Room::make("accounts");
    let (exited, output) = room.run("rm /etc/passwd && mkdir /etc/passwd", 5000);
    assert_eq!(exited.wait_status, 0, "{output}");
    let (exited, output) = room.run("echo here", 5000);
    assert_eq!((exited.wait_status, output.as_str()), (0, "here\n"));
    room.end();
}

/// An image of as many layers as an import takes.
#[test]
fn a_sandbox_of_a_hundred_and_twenty_seven_layers_is_made() {
    let mut room = Room::make_with("layers", 126);
    let (_, output) = room.run("echo made", 5000);
    assert_eq!(output, "made\n");
    room.end();
}

/// More runs than a socket's queue takes messages: the next daemon is told of all, and no end is lost.
#[test]
fn a_new_daemon_is_told_of_every_run() {
    const RUNS: u32 = 300;
    let mut room = Room::make("meeting");
    for n in 0..RUNS {
        let (exited, _) = room.run("true", 0);
        assert_eq!(exited.wait_status, 0, "run {n}");
    }
    let path = room._dir.path().join("holder.sock");
    let next = socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .unwrap();
    connect(next.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
    let hello = ToHolder {
        message: Some(to_holder::Message::Hello(Hello {
            protocol: protocol::Versions::OURS.newest,
            oldest: protocol::Versions::OURS.oldest,
        })),
        fds: Vec::new(),
    };
    protocol::send(next.as_fd(), &hello, &[], Wait::Yes).unwrap();
    let mut buffer = vec![0; MAX_PACKET];
    let mut hear = || {
        let (answer, _) =
            protocol::receive::<FromHolder>(next.as_fd(), &mut buffer, Wait::Yes).unwrap();
        answer.message.unwrap()
    };
    let from_holder::Message::Hello(reply) = hear() else {
        panic!("the first message is the reply")
    };
    assert_eq!(reply.runs, RUNS);
    for n in 1..=RUNS {
        let from_holder::Message::RunState(state) = hear() else {
            panic!("message {n} tells of no run")
        };
        assert_eq!(state.run_id, format!("run{n}"));
        assert_eq!(state.exited.expect("it has ended").wait_status, 0);
    }
    room.end();
}
