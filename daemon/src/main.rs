//! lodged: the Lodge daemon. Arguments, configuration, storage, launcher, build, serve, drain.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lodge_kernel::protection;
use lodged::api::grpc;
use lodged::api::listener;
use lodged::config::{Config, Invocation, Listen, ReportFormat, unknown_variables};
use lodged::doctor::{self, Files};
use lodged::fault;
use lodged::holder::LauncherProcess;
use lodged::notify::{Notice, notify};
use lodged::sandbox::Registry;
use lodged::sandbox::host::Host;
use lodged::service::Lodge;
use lodged::signals::Signals;
use lodged::storage::reserve::ReserveKeeper;
use lodged::storage::{Choice, choice, pool};
use lodged::store::StateLock;
use lodged::{assemble, telemetry};
use nix::sys::prctl;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Name of the hidden subcommand in which this binary forks holders instead of serving.
const LAUNCHER: &str = "launcher";
/// How long work in other threads may go on after the end, such as the removal of a large tree. The next start takes up
/// what is cut.
const LAST_WORK: Duration = Duration::from_secs(1);

/// Threads for work that blocks which are there from the start, and how long one is kept that has nothing to do.
const THREADS_AT_HAND: usize = 4;
const THREADS_KEPT: Duration = Duration::from_secs(3_600);

fn main() -> ExitCode {
    // Before anything else: what a holder inherits of this process stays in its memory.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|argument| argument == LAUNCHER)
    {
        return launch_holders();
    }
    #[cfg(feature = "fault-points")]
    if std::env::args_os()
        .nth(1)
        .is_some_and(|argument| argument == "fault-points")
    {
        return list_fault_points();
    }
    let code = run().unwrap_or_else(|error| fail(&error));
    telemetry::finish();
    code
}

/// Forks holders for the daemon at the other end of standard input, until that end is closed.
fn launch_holders() -> ExitCode {
    let served = lodge_kernel::sys::fd::inherit(0)
        .map_err(anyhow::Error::from)
        .and_then(|socket| Ok(lodge_holder::launcher::run(socket)?));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

/// One name a line, for the tests.
#[cfg(feature = "fault-points")]
fn list_fault_points() -> ExitCode {
    match writeln!(io::stdout(), "{}", fault::names().join("\n")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error.into()),
    }
}

fn run() -> Result<ExitCode> {
    match Invocation::read()? {
        Invocation::CheckConfig => {
            writeln!(io::stdout(), "the configuration is valid")?;
            Ok(ExitCode::SUCCESS)
        }
        Invocation::Doctor(config, format) => {
            let launcher = LauncherProcess::start(&config.state_dir)?;
            telemetry::start(config.log_level, config.log_format)?;
            block_on(examine(&config, launcher, format))
        }
        Invocation::Serve(config) => {
            fault::arm()?;
            protection::check()?;
            require_root()?;
            doctor::refuse_unfit_host()?;
            // The lock comes before everything that a second daemon could disturb, the launcher before the first thread.
            let lock = StateLock::take(&config.state_dir)?;
            let choice = choose_storage(&config)?;
            let launcher = LauncherProcess::start(&config.state_dir)?;
            telemetry::start(config.log_level, config.log_format)?;
            warn_of_unknown_variables();
            prepare_process()?;
            let served = block_on(serve(&config, choice, launcher));
            // Held until the process is gone: threads that were given up may still be at work in the state directory.
            std::mem::forget(lock);
            served.map(|()| ExitCode::SUCCESS)
        }
    }
}

/// Which driver has the files of sandboxes. A pool is mounted in a mount namespace of our own, which the launcher must share.
fn choose_storage(config: &Config) -> Result<Choice> {
    let choice = choice::choose(config).map_err(lodged::error::Error::from)?;
    if choice.needs_mount() {
        pool::make_mounts_private().context("cannot have mounts of our own")?;
    }
    Ok(choice)
}

/// Settings of this process that the launcher must not have.
fn prepare_process() -> Result<()> {
    // Secrets of runs pass through this process: none may be left in a core file, or be read by ptrace.
    prctl::set_dumpable(false).context("cannot become non-dumpable")?;
    // Each sandbox takes a few descriptors and each run about ten; the usual soft limit of 1,024 is for programs that
    // use select(2).
    let files = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: files.maximum,
        ..files
    };
    setrlimit(Resource::Nofile, raised).context("cannot raise the limit on open files")
}

fn warn_of_unknown_variables() {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in unknown_variables(names) {
        tracing::warn!(
            name,
            "this variable is no setting of lodged, and changes nothing"
        );
    }
}

/// Says what is wrong before the first call that fails for it says something else.
fn require_root() -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "lodged makes namespaces, mounts and cgroups and needs root\nhint: start it as root, or with systemd"
    );
    Ok(())
}

async fn serve(config: &Config, choice: Choice, launcher: LauncherProcess) -> Result<()> {
    let mut signals = Signals::watch()?;
    keep_threads_at_hand();
    let platform = assemble::platform(config, choice, launcher.into_async()?)?;
    let _keeper = ReserveKeeper::start(Arc::clone(&platform.storage))
        .context("cannot keep the host's reserve")?;
    let groups = platform.cgroup_parent.clone();
    let Listen::Unix(socket) = &config.listen;
    // From here on a client that is refused waits for us; sandboxes are taken up meanwhile.
    let announced = listener::announce(socket, &config.socket_group)?;
    let registry = tokio::select! {
        registry = Registry::open(Host::new(platform)) => registry?,
        // What was taken up so far goes on, and is taken up by the next one.
        () = signals.asked_to_end() => return Ok(()),
    };
    if let Some(plate) = announced {
        plate.hand_over();
    }
    let door = listener::listen(socket, &config.socket_group)?;
    // While the last calls end, the socket refuses clients and is there: they wait for the next daemon.
    let plate = door.plate();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), socket = %socket.display(), "serving");
    notify(Notice::Ready(registry.recovery().to_string()));
    let stop = async move {
        signals.asked_to_end().await;
        tracing::info!("stopping; sandboxes go on");
        notify(Notice::Stopping);
        signals.end_at_once_next_time();
    };
    grpc::serve(Lodge::new(registry), door, stop).await?;
    drop(plate);
    groups.leave();
    Ok(())
}

/// Some threads for work that blocks, made while there is room for them: on a host without room for more, that work
/// waits for these, and not for ever.
fn keep_threads_at_hand() {
    for _ in 0..THREADS_AT_HAND {
        // Long enough for each to need a thread of its own.
        tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(1)));
    }
}

async fn examine(
    config: &Config,
    launcher: LauncherProcess,
    format: ReportFormat,
) -> Result<ExitCode> {
    let bench = assemble::bench(config, launcher.into_async()?);
    let report = doctor::examine_with(bench, Files::with(config)).await;
    let text = match format {
        ReportFormat::Text => report.to_string(),
        ReportFormat::Json => report.to_json() + "\n",
    };
    io::stdout().write_all(text.as_bytes())?;
    Ok(if report.ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("lodged")
        .thread_keep_alive(THREADS_KEPT)
        .build()
        .context("cannot start the runtime")?;
    let result = runtime.block_on(work);
    runtime.shutdown_timeout(LAST_WORK);
    result
}

fn fail(error: &anyhow::Error) -> ExitCode {
    // If standard error is closed, the exit code is all that is left to say.
    writeln!(io::stderr(), "error: {error:#}").ok();
    ExitCode::FAILURE
}
