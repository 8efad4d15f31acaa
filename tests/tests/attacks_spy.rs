//! Attack E12: a spy inside that waits for each command on its way from the holder.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lodge_tests::arena::{Arena, canary};
use lodge_tests::live::contains;
use lodge_tests::prober::program;

/// Runs with a secret that the spy watches.
const SPIED_RUNS: usize = 250;

/// Seizes each new process and reads its files in `/proc` before it becomes the command. Whatever it gets hold of must
/// be a process that has executed a program of the sandbox: nothing of the daemon's, no descriptor of the host's.
const SPY: &str = r"
PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17
own, dead = os.getpid(), {}
print('ready', flush=True)
bad, seen, stop = set(), 0, '/tmp/stop'
def link(path):
    try: return os.readlink(path)
    except OSError: return ''
while not os.path.exists(stop):
    # A traced process that has ended stays until its tracer asks: without this no run would ever end.
    try:
        while os.waitpid(-1, os.WNOHANG | 0x40000000)[0]: pass
    except ChildProcessError: pass
    for name in os.listdir('/proc'):
        if not name.isdigit() or int(name) in (1, own): continue
        p = '/proc/' + name
        exe = link(p + '/exe')
        if 'lodge' in exe or 'memfd' in exe: bad.add('exe ' + exe)
        r, e = sc('ptrace', PTRACE_SEIZE, int(name), 0, 0)
        if r == 0:
            seen += 1
            held = link(p + '/exe')
            if 'lodge' in held: bad.add('seized ' + held)
        try:
            for fd in os.listdir(p + '/fd'):
                to = link(p + '/fd/' + fd)
                if to.startswith('/') and not to.startswith(('/dev/null', '/proc/', '/usr', '/lib', '/etc', '/tmp')):
                    bad.add('fd ' + to)
                if 'cgroup' in to or 'seqpacket' in to: bad.add('fd ' + to)
        except OSError: pass
        for f in ('environ', 'maps'):
            try: data = open(p + '/' + f, 'rb').read()
            except OSError: continue
            if b'lodged' in data or b'CANARY_DAEMON' in data: bad.add(f + ' of ' + exe)
print('seized: %d' % seen)
for b in sorted(bad): print('bad: ' + b)
";

/// A spy tries to get hold of every process on its way to the command. It gets no process that is still the holder's child, no
/// descriptor of the host, and the secrets of the runs stay in their own final processes.
async fn spied_as(user: &str) -> Result<()> {
    let arena = Arena::new().await?;
    let spy = arena.attacker.python(&program(SPY)).user(user);
    let mut spy = spy.timeout(Duration::from_secs(100)).start().await?;
    spy.wait_for("ready").await?;
    let secret = canary()?;
    for n in 0..SPIED_RUNS {
        let run = arena.attacker.run("exit 0").user(user);
        let ran = run.secret("SECRET", &secret).await?;
        ran.exited(0).with_context(|| format!("run {n}"))?;
    }
    arena.attack("touch /tmp/stop").await?.exited(0)?;
    let result = spy.end().await?;
    let text = String::from_utf8_lossy(&spy.stdout).into_owned();
    let errors = String::from_utf8_lossy(&spy.stderr);
    ensure!(result.exit_code == 0, "{text} {errors}");
    ensure!(text.contains("seized: "), "it did not look: {text}");
    ensure!(!text.contains("bad: "), "the spy saw: {text}");
    for (whose, canary) in arena.canaries.all() {
        let seen = contains(&spy.stdout, canary.as_bytes());
        ensure!(!seen, "{whose} canary was seen");
    }
    arena.check().await
}

/// Root of the sandbox spies on root's commands.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e12_root_traces_the_entering_child() -> Result<()> {
    spied_as("root").await
}

/// A user spies on its own commands: until its exec, such a child is one of the same user, with the holder's memory.
#[tokio::test(flavor = "multi_thread")]
async fn attack_e12_a_user_traces_the_entering_child() -> Result<()> {
    spied_as("user").await
}
