//! `lodge run`: a command's output as it comes, and its exit code as ours.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use lodge_client::{
    Client, MAX_OUTPUT_BYTES, Outcome, ResumeMode, Run, RunStream, Sandbox, SandboxRef,
};

use crate::cli::Daemon;
use crate::environment::Environment;
use crate::failure::{Advice, ReaderGone};
use crate::follow::{self, Seen};
use crate::interrupt::Interrupt;
use crate::sandbox_arg::InSandbox;
use crate::{json, terminal, units};

/// Bytes kept of each stream with `--json` unless told otherwise; the API's default.
const DEFAULT_OUTPUT: &str = "1MiB";

/// Run a command in a sandbox
///
/// One argument is a script for the shell: lodge run 'echo $HOME | wc -c'. Several are a program and its arguments,
/// passed as they are, without a shell: lodge run grep -r "a b" /etc.
///
/// The sandbox is created if there is none of that name, and its files stay. Output is passed through as it comes.
/// Standard input is left alone without -i; the command then reads /dev/null. Ctrl-C ends the command with all that it
/// started; a second one leaves at once. A restart of the daemon in the middle changes nothing, unless the command did not
/// have all of its standard input by then: that is an error.
///
/// Exit code: the command's; 128+n if signal n ended it; 124 after its timeout; 127 if it was not found, 126 if it could
/// not be executed; 125 if Lodge itself failed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    sandbox: InSandbox,
    /// Image of a sandbox that has to be created; refused if it exists with another one
    #[arg(long)]
    image: Option<String>,
    #[command(flatten)]
    environment: Environment,
    /// Directory to run it in, absolute [default: the image's, else the user's home]
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<String>,
    /// End it, with all that it started, after this time: 90s, 5m, 0 for never [default: the server's, usually 120 s]
    #[arg(short, long, value_name = "DURATION", value_parser = units::parse_duration)]
    timeout: Option<Duration>,
    /// User name or id inside, optionally with :group [default: the image's, else `user`]
    #[arg(short, long)]
    user: Option<String>,
    /// Pass our standard input to it
    #[arg(short = 'i', long)]
    stdin: bool,
    /// What to do if the sandbox is frozen: thaw it, or fail
    #[arg(long, value_name = "MODE", default_value = "auto")]
    resume: Resume,
    /// Leave it running and print its id: `lodge attach` gets back to it, `lodge logs` shows what it wrote
    ///
    /// It still ends at its timeout; give -t 0 for none.
    #[arg(short, long, conflicts_with_all = ["stdin", "json"])]
    detach: bool,
    /// Print one JSON object with the result and the output, instead of the output as it comes
    ///
    /// stdout and stderr are text. Where that is not exact (cut, or not UTF-8) the bytes kept are there too, as
    /// stdout_head_base64, stdout_tail_base64 and so on. If Lodge itself failed the object has the one key `error`.
    #[arg(long)]
    json: bool,
    /// Bytes kept of each stream with --json; the beginning and the end are kept
    #[arg(long, value_name = "SIZE", requires = "json", default_value = DEFAULT_OUTPUT, value_parser = units::parse_size)]
    max_output: i64,
    /// A script, or a program with its arguments
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<String>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Resume {
    Auto,
    Error,
}

impl From<Resume> for ResumeMode {
    fn from(resume: Resume) -> Self {
        match resume {
            Resume::Auto => Self::Auto,
            Resume::Error => Self::Error,
        }
    }
}

pub(crate) async fn execute(args: Args, daemon: &Daemon) -> Result<ExitCode> {
    if args.detach {
        let (_, _, run_id) = start(&args, daemon).await?;
        terminal::data(&run_id)?;
        return Ok(ExitCode::SUCCESS);
    }
    let ended = match args.json {
        false => stream(&args, daemon).await,
        true => match object(&args, daemon).await {
            Err(error) if !error.is::<ReaderGone>() => {
                terminal::data(&json::error(&error).to_string())?;
                Err(error)
            }
            result => result,
        },
    };
    let (outcome, sandbox) = ended?;
    if !args.json {
        follow::tell_end(&outcome, &sandbox).await;
    }
    Ok(follow::exit_code(&outcome))
}

/// Passes the output through.
async fn stream(args: &Args, daemon: &Daemon) -> Result<(Outcome, Sandbox)> {
    let (sandbox, mut events, run_id) = start(args, daemon).await?;
    let result = follow::pass_through(&mut events).await;
    if matches!(&result, Err(error) if error.is::<ReaderGone>()) {
        // As SIGPIPE would end a local command. That we leave is more important than that this works.
        let _ = sandbox.kill(&run_id).await;
        return Ok((result?, sandbox));
    }
    let seen = Seen {
        sandbox: &args.sandbox.sandbox,
        run: &run_id,
    };
    let outcome = result.map_err(|error| seen.lost(error, &follow::from_here(&events)))?;
    Ok((outcome, sandbox))
}

/// Prints one object at the end.
async fn object(args: &Args, daemon: &Daemon) -> Result<(Outcome, Sandbox)> {
    let (sandbox, events, run_id) = start(args, daemon).await?;
    let budget = u64::try_from(args.max_output).unwrap_or(0);
    let seen = Seen {
        sandbox: &args.sandbox.sandbox,
        run: &run_id,
    };
    let collected = events.collect(budget).await;
    let output = collected.map_err(|error| seen.lost(error.into(), "--from-start"))?;
    terminal::data(&json::output(&output).to_string())?;
    Ok((output.outcome, sandbox))
}

/// Starts the run and waits until it has an id.
async fn start(args: &Args, daemon: &Daemon) -> Result<(Sandbox, RunStream, String)> {
    // What is wrong with the arguments is told before anything is created.
    if u64::try_from(args.max_output).unwrap_or(0) > MAX_OUTPUT_BYTES {
        return Err(Advice::new(
            "--max-output is above 8 MiB",
            "without --json nothing is cut",
        )
        .into());
    }
    let variables = args.environment.variables()?;
    let secrets = args.environment.secrets()?;
    let client = daemon.connect().await?;
    let to_run = |sandbox: &Sandbox| {
        let mut run = args.apply(command(&args.command, sandbox));
        run = run.envs(&variables);
        for (name, value) in &secrets {
            run = run.secret(name, value.clone());
        }
        run
    };
    let sandbox = sandbox(args, &client, &to_run).await?;
    let interrupt = Interrupt::listen(sandbox.clone()).context("cannot listen for signals")?;
    let mut run = to_run(&sandbox);
    if args.stdin {
        run = run.stdin_reader(tokio::io::stdin());
    }
    let events = run.stream().await?;
    let run_id = events.run_id().to_owned();
    interrupt.started(&run_id);
    Ok((sandbox, events, run_id))
}

/// The sandbox to run in. One that has to be created is created for a call that will be taken, and for no other.
async fn sandbox(
    args: &Args,
    client: &Client,
    to_run: &impl Fn(&Sandbox) -> Run,
) -> Result<Sandbox> {
    match (args.sandbox.sandbox.reference(), &args.image) {
        (SandboxRef::Id(_), Some(_)) => Err(Advice::new(
            "a sandbox that is named by its id has its image already",
            "leave out --image, or give a name",
        )
        .into()),
        (id @ SandboxRef::Id(_), None) => Ok(client.at(id)),
        (SandboxRef::Name(name), image) => {
            let there = client.at(name.as_str());
            if there.info().await.is_err_and(|e| e.is_not_found()) {
                to_run(&there).check().await?;
            }
            let mut acquire = client.sandbox(name).resume(args.resume.into());
            if let Some(image) = image {
                acquire = acquire.image(image);
            }
            Ok(acquire.await?)
        }
    }
}

fn command(words: &[String], sandbox: &Sandbox) -> Run {
    match words {
        [script] => sandbox.run(script),
        argv => sandbox.run_argv(argv),
    }
}

impl Args {
    fn apply(&self, run: Run) -> Run {
        let mut run = run.resume(self.resume.into());
        if let Some(workdir) = &self.workdir {
            run = run.cwd(workdir);
        }
        if let Some(user) = &self.user {
            run = run.user(user);
        }
        if let Some(timeout) = self.timeout {
            run = run.timeout(timeout);
        }
        run
    }
}
