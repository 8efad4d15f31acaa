//! lodged: the Lodge daemon. Arguments, configuration, launcher, build, serve, drain.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lodged::api::grpc;
use lodged::api::listener::listen;
use lodged::config::{Config, Invocation, Listen, ReportFormat};
use lodged::doctor;
use lodged::fault;
use lodged::holder::LauncherProcess;
use lodged::notify::{Notice, notify};
use lodged::sandbox::Registry;
use lodged::sandbox::host::Host;
use lodged::service::Lodge;
use lodged::store::StateLock;
use lodged::{assemble, telemetry};
use nix::sys::prctl;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

/// Name of the hidden subcommand in which this binary forks holders instead of serving.
const LAUNCHER: &str = "launcher";
/// How long work in other threads may go on after the end, such as the removal of a large tree. The next start takes up
/// what is cut.
const LAST_WORK: Duration = Duration::from_secs(1);

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
    match run() {
        Ok(code) => code,
        Err(error) => fail(&error),
    }
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
            telemetry::start(config.log_level, config.log_format);
            let launcher = LauncherProcess::start(&config.state_dir)?;
            block_on(examine(&config, launcher, format))
        }
        Invocation::Serve(config) => {
            telemetry::start(config.log_level, config.log_format);
            fault::arm()?;
            require_root()?;
            // The lock comes before everything that a second daemon could disturb, the launcher before the first thread.
            let lock = StateLock::take(&config.state_dir)?;
            let launcher = LauncherProcess::start(&config.state_dir)?;
            prepare_process()?;
            let served = block_on(serve(&config, launcher));
            drop(lock);
            served.map(|()| ExitCode::SUCCESS)
        }
    }
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

/// Says what is wrong before the first call that fails for it says something else.
fn require_root() -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "lodged makes namespaces, mounts and cgroups and needs root\nhint: start it as root, or with systemd"
    );
    Ok(())
}

async fn serve(config: &Config, launcher: LauncherProcess) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let platform = assemble::platform(config, launcher.into_async()?)?;
    let groups = platform.cgroup_parent.clone();
    let registry = Registry::open(Host::new(platform)).await?;
    let Listen::Unix(socket) = &config.listen;
    let listener = listen(socket, &config.socket_group)?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), socket = %socket.display(), "serving");
    notify(Notice::Ready);
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping; sandboxes go on");
        notify(Notice::Stopping);
    };
    grpc::serve(Lodge::new(registry), listener, stop).await?;
    remove_socket(socket);
    groups.leave();
    Ok(())
}

async fn examine(
    config: &Config,
    launcher: LauncherProcess,
    format: ReportFormat,
) -> Result<ExitCode> {
    let report = doctor::examine_with(assemble::bench(config, launcher.into_async()?)).await;
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
        .build()
        .context("cannot start the runtime")?;
    let result = runtime.block_on(work);
    runtime.shutdown_timeout(LAST_WORK);
    result
}

fn remove_socket(socket: &Path) {
    if let Err(error) = std::fs::remove_file(socket) {
        tracing::debug!(%error, "socket not removed");
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    // If standard error is closed, the exit code is all that is left to say.
    writeln!(io::stderr(), "error: {error:#}").ok();
    ExitCode::FAILURE
}
