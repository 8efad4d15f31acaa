//! Tricks with processes.

use super::{Row, python, row, shell};

pub(super) const ROWS: &[Row] = &[
    row("P01", "a daemon that holds the output").star(),
    row("P02", "output after the command's end").star(),
    row("P04", "a command that stops itself").star(),
    row("P05", "stopped trees").star(),
    row("P06", "kill everything").star(),
    row("P08", "a million signals and ten thousand zombies for PID 1").probe(python(
        "
for i in range(1000000):
    try: os.kill(1, signal.SIGHUP if i % 2 else signal.SIGTERM)
    except OSError: pass
for i in range(2000):
    if os.fork() == 0:
        if os.fork() == 0: os._exit(0)
        os._exit(0)
    os.wait()
print('done: OK')
",
        &[("done", "OK")],
    )),
    row("P09", "the system's own files are junk").star(),
    row("P10", "a shell that is no program").star(),
    row("P12", "a hostile /etc/passwd"),
    row("P13", "a working directory that is gone, or none"),
    row("P14", "limits that another run set").test_falls(&[("ordinary", "attack_p14_limits_of_others")]),
    row("P16", "every exit code and every signal"),
    row("P17", "commands that end at once"),
    row("P18", "files that are no programs").named(&["case_f4_what_cannot_be_executed"]),
    row("P20", "groups, sessions and subreapers"),
    row("P21", "programs that do not want to end"),
    row("P23", "a service across runs").see("case_b2 and case_a1: what a run leaves lives on until it is killed"),
    row("P24", "spare oneself where memory runs out").probe(python(
        "
def score(value):
    with open('/proc/self/oom_score_adj', 'w') as f: f.write(value)
tell('less', lambda: score('-1000'))
tell('more', lambda: score('1000'))
",
        &[("less", "EACCES"), ("more", "OK")],
    )),
    row("P25", "the name of PID 1").probe(shell(
        "python3 -c \"import ctypes; print(ctypes.CDLL(None).prctl(15, b'lodge-holder', 0, 0, 0))\"",
        "0\n",
    )),
    row("P26", "a hundred thousand changes of limits and processors").probe(python(
        "
import resource
for i in range(100000):
    os.sched_setaffinity(0, {0})
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
print('done: OK')
",
        &[("done", "OK")],
    )),
];
