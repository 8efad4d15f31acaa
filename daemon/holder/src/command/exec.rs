//! The child's side: from the fork to the exec. It runs in a copy of the holder's memory, so it may allocate; the exec
//! throws all of it away. Only the exec itself touches the sandbox's files by a name that the caller chose, and by then the
//! child is the user that the caller asked for.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};

use lodge_kernel::identity::hide_memory;
use lodge_kernel::protection::Protection;
use lodge_kernel::sys::clone::exit_now;
use lodge_kernel::sys::fd::{close_from, place, place_cloexec};
use lodge_proto::holder::{ExecSpec, StepFailure};
use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::SigSet;
use nix::unistd::{Gid, Uid, chdir, execve, getcwd, setgroups, setresgid, setresuid, setsid};
use prost::Message as _;

use super::user::{self, User};
use super::{FIRST_UNWANTED_FD, NOT_EXECUTABLE, NOT_FOUND, SCRIPT_FD, STATUS_FD, environment};
use crate::protocol::{Cause, StepError, errno_of, join_v1_groups, on};
use crate::serve::RunSettings;

/// Shells for the shell form, in order of preference: (path, name).
const SHELLS: &[(&CStr, &CStr)] = &[
    (c"/bin/bash", c"bash"),
    (c"/usr/bin/bash", c"bash"),
    (c"/bin/sh", c"sh"),
    (c"/usr/bin/sh", c"sh"),
];

/// Where a script lies that is too long for an argument.
const SCRIPT_PATH: &CStr = c"/proc/self/fd/3";

/// Longest name of an object in the message to the holder, in characters: the caller chooses it.
const OBJECT_MAX: usize = 512;

/// What the child needs.
pub(super) struct Child<'a> {
    pub(super) settings: &'a RunSettings,
    /// v1 `tasks` that all runs share.
    pub(super) shared_tasks: &'a [OwnedFd],
    /// v1 `tasks` of this run alone.
    pub(super) leaf_tasks: Vec<OwnedFd>,
    pub(super) spec: OwnedFd,
    pub(super) script: Option<OwnedFd>,
    pub(super) stdin: Option<OwnedFd>,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
    pub(super) status: OwnedFd,
}

/// Becomes the command, or tells why not and exits with 127 or 126. Never returns.
pub(super) fn run(child: Child<'_>) -> ! {
    let mut error = match become_command(child) {
        Ok(never) => match never {},
        Err(error) => error,
    };
    // The holder reads a page of it.
    error.object = error.object.chars().take(OBJECT_MAX).collect();
    let status = if error.step == "exec" && error.errno == Errno::ENOENT {
        NOT_FOUND
    } else {
        NOT_EXECUTABLE
    };
    if let Ok(pipe) = lodge_kernel::sys::fd::inherit(STATUS_FD) {
        // The exit status tells too; the message only says more.
        let _ = File::from(pipe).write_all(&StepFailure::from(error).encode_to_vec());
    }
    exit_now(status)
}

fn become_command(child: Child<'_>) -> Result<std::convert::Infallible, StepError> {
    let failed = |step| {
        move |cause: Cause| StepError {
            step,
            object: cause.object,
            errno: cause.errno,
        }
    };
    let groups = child.leaf_tasks.iter().chain(child.shared_tasks);
    join_v1_groups(groups).map_err(failed("join-cgroups"))?;
    let settings = child.settings;
    let spec = place_descriptors(child).map_err(failed("descriptors"))?;
    setsid().map_err(on("session")).map_err(failed("session"))?;
    SigSet::empty()
        .thread_set_mask()
        .map_err(on("signal mask"))
        .map_err(failed("signals"))?;
    limit_open_files(settings.open_files).map_err(failed("limits"))?;
    let user = user::look_up(&spec.user).map_err(failed("user"))?;
    // While still root of the sandbox: a filter without no_new_privs takes CAP_SYS_ADMIN.
    add_filter(settings).map_err(failed("seccomp"))?;
    if settings.no_new_privileges {
        prctl::set_no_new_privs()
            .map_err(on("no_new_privs"))
            .map_err(failed("no-new-privileges"))?;
    }
    become_user(&user).map_err(failed("user"))?;
    enter_directory(&spec, &user).map_err(failed("cwd"))?;
    let env = environment::complete(spec.env, &user).map_err(failed("env"))?;
    let argv = arguments(spec.argv).map_err(failed("exec"))?;
    let executed = if spec.shell {
        exec_shell(argv.first(), &env)
    } else {
        exec_program(&argv, &env)
    };
    executed.map_err(failed("exec"))
}

/// Reads the spec, puts the standard streams, the script and the status pipe in their places, and closes all else for good: nothing of
/// the holder's is open any more when a path of the caller's is looked up.
fn place_descriptors(child: Child<'_>) -> Result<ExecSpec, Cause> {
    let spec = read_spec(child.spec)?;
    // Without one, the child has inherited the holder's own standard input, which is /dev/null.
    if let Some(stdin) = &child.stdin {
        place(stdin.as_fd(), 0).map_err(on("stdin"))?;
    }
    place(child.stdout.as_fd(), 1).map_err(on("stdout"))?;
    place(child.stderr.as_fd(), 2).map_err(on("stderr"))?;
    place_cloexec(child.status.as_fd(), STATUS_FD).map_err(on("status pipe"))?;
    match &child.script {
        Some(script) => place(script.as_fd(), SCRIPT_FD).map_err(on("script"))?,
        None => nix::unistd::close(SCRIPT_FD).map_err(on("script"))?,
    }
    // Their numbers are closed next, all at once.
    let Child {
        leaf_tasks,
        script,
        stdin,
        stdout,
        stderr,
        status,
        ..
    } = child;
    std::mem::forget((leaf_tasks, script, stdin, stdout, stderr, status));
    close_from(FIRST_UNWANTED_FD).map_err(on("descriptors"))?;
    Ok(spec)
}

fn add_filter(settings: &RunSettings) -> Result<(), Cause> {
    if Protection::RunFilter.is_off() {
        return Ok(());
    }
    lodge_kernel::seccomp::install(&settings.filter).map_err(on("run filter"))
}

/// Reads the spec and wipes it: its memory is shared with nobody, but it would outlive us until its last descriptor is closed.
fn read_spec(memfd: OwnedFd) -> Result<ExecSpec, Cause> {
    let io = |e: std::io::Error| on("exec spec")(errno_of(&e));
    let mut file = File::from(memfd);
    let mut bytes =
        Vec::with_capacity(usize::try_from(file.metadata().map_err(io)?.len()).unwrap_or(0));
    std::io::Seek::rewind(&mut file).map_err(io)?;
    file.read_to_end(&mut bytes).map_err(io)?;
    let spec = ExecSpec::decode(bytes.as_slice()).map_err(|_| on("exec spec")(Errno::EBADMSG))?;
    crate::serve::wipe(OwnedFd::from(file));
    Ok(spec)
}

fn limit_open_files(soft: u64) -> Result<(), Cause> {
    if Protection::OpenFiles.is_off() {
        return Ok(());
    }
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(on("open files"))?;
    setrlimit(Resource::RLIMIT_NOFILE, soft.min(hard), hard).map_err(on("open files"))
}

fn become_user(user: &User) -> Result<(), Cause> {
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    let groups: Vec<Gid> = user.groups.iter().copied().map(Gid::from_raw).collect();
    setgroups(&groups).map_err(on("groups"))?;
    setresgid(gid, gid, gid).map_err(on(format!("gid {gid}")))?;
    // Root keeps its capabilities here and the exec cuts them to the bounding set; everyone else loses them now.
    setresuid(uid, uid, uid).map_err(on(format!("uid {uid}")))?;
    // Where fs.suid_dumpable says so, that made it dumpable: a process of the same user inside could trace it until the exec, and
    // read what it has of the holder's memory.
    hide_memory().map_err(on("dumpable flag"))
}

/// Goes to the working directory, as the user. One that does not lie under the sandbox's root is refused, however it was reached.
fn enter_directory(spec: &ExecSpec, user: &User) -> Result<(), Cause> {
    if spec.cwd.is_empty() {
        return chdir(user.home.as_c_str())
            .or_else(|_| chdir("/"))
            .map_err(on("/"));
    }
    let object = || on(String::from_utf8_lossy(&spec.cwd));
    let path = CString::new(spec.cwd.clone()).map_err(|_| object()(Errno::EINVAL))?;
    chdir(path.as_c_str()).map_err(object())?;
    match getcwd() {
        Ok(dir) if dir.is_absolute() => Ok(()),
        Ok(_) => Err(object()(Errno::EXDEV)),
        Err(errno) => Err(object()(errno)),
    }
}

fn arguments(argv: Vec<Vec<u8>>) -> Result<Vec<CString>, Cause> {
    argv.into_iter()
        .map(|arg| CString::new(arg).map_err(|_| on("argument")(Errno::EINVAL)))
        .collect()
}

fn exec_shell(
    script: Option<&CString>,
    env: &[CString],
) -> Result<std::convert::Infallible, Cause> {
    for (path, name) in SHELLS {
        let mut argv: Vec<&CStr> = vec![name];
        match script {
            Some(script)
                if script.to_bytes().starts_with(b"-") || script.to_bytes().starts_with(b"+") =>
            {
                argv.extend([c"-c", c"--", script]);
            }
            Some(script) => argv.extend([c"-c", script]),
            None => argv.push(SCRIPT_PATH),
        }
        match execve(path, &argv, env) {
            Ok(never) => return Ok(never),
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(on(path.to_string_lossy())(errno)),
        }
    }
    Err(on("bash and sh")(Errno::ENOENT))
}

/// Like execvpe(3): looks the program up in the PATH of its own environment, and gives a text without `#!` to sh.
fn exec_program(argv: &[CString], env: &[CString]) -> Result<std::convert::Infallible, Cause> {
    let name = argv.first().ok_or(Errno::EINVAL).map_err(on("program"))?;
    let object = || on(name.to_string_lossy());
    if name.as_bytes().is_empty() {
        return Err(object()(Errno::ENOENT));
    }
    let mut refused = Errno::ENOENT;
    for path in environment::candidates(name, env) {
        match execve(&path, argv, env) {
            Ok(never) => return Ok(never),
            Err(Errno::ENOEXEC) => {
                return exec_text(&path, argv, env).map_err(|_| object()(Errno::ENOEXEC));
            }
            Err(Errno::ENOENT | Errno::ENOTDIR) => {}
            // Found, but not for us: go on looking, and say so if nothing better is found.
            Err(errno @ Errno::EACCES) => refused = errno,
            Err(errno) => return Err(object()(errno)),
        }
    }
    Err(object()(refused))
}

fn exec_text(
    path: &CStr,
    argv: &[CString],
    env: &[CString],
) -> nix::Result<std::convert::Infallible> {
    let mut args: Vec<&CStr> = vec![c"sh", path];
    args.extend(argv.iter().skip(1).map(CString::as_c_str));
    execve(c"/bin/sh", &args, env)
}
