//! The command line as a whole: subcommands and what they share.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use lodge_client::{Client, DEFAULT_ENDPOINT, ENDPOINT_VARIABLE};

use crate::{
    attach, completion, create, df, doctor, image, inspect, kill, logs, ls, pause, pool, ps,
    resume, rm, run, runs, start, stats, stop, update, version, watch,
};

/// Run commands in persistent, isolated Linux sandboxes.
#[derive(Debug, Parser)]
#[command(
    name = "lodge",
    version,
    after_help = "Exit codes: those of the command for `run` and `attach`; 125 if Lodge itself failed (usage, daemon, connection)."
)]
pub(crate) struct Cli {
    /// Where the daemon listens: unix:///path/to/socket or http://host:port
    #[arg(
        long,
        global = true,
        env = ENDPOINT_VARIABLE,
        default_value = DEFAULT_ENDPOINT,
        hide_env_values = true,
        value_name = "URL"
    )]
    endpoint: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Create(create::Args),
    Ls(ls::Args),
    Inspect(inspect::Args),
    Update(update::Args),
    Pause(pause::Args),
    Resume(resume::Args),
    Start(start::Args),
    Stop(stop::Args),
    Rm(rm::Args),
    Stats(stats::Args),
    Watch(watch::Args),
    Ps(ps::Args),
    Kill(kill::Args),
    Runs(runs::Args),
    Attach(attach::Args),
    Logs(logs::Args),
    Image(image::Args),
    Df(df::Args),
    Pool(pool::Args),
    Doctor(doctor::Args),
    Version(version::Args),
    Completion(completion::Args),
}

impl Cli {
    /// Does what was asked. The exit code is the command's for `run`, else 0 if all went well.
    pub(crate) async fn execute(self) -> Result<ExitCode> {
        let daemon = Daemon {
            endpoint: self.endpoint,
        };
        match self.command {
            Command::Run(args) => return run::execute(args, &daemon).await,
            Command::Attach(args) => return attach::execute(args, &daemon).await,
            Command::Logs(args) => return logs::execute(args, &daemon).await,
            Command::Doctor(args) => return doctor::execute(args, &daemon).await,
            Command::Pause(args) => return pause::execute(args, &daemon).await,
            Command::Resume(args) => return resume::execute(args, &daemon).await,
            Command::Start(args) => return start::execute(args, &daemon).await,
            Command::Stop(args) => return stop::execute(args, &daemon).await,
            Command::Rm(args) => return rm::execute(args, &daemon).await,
            Command::Stats(args) => return stats::execute(args, &daemon).await,
            Command::Create(args) => create::execute(args, &daemon).await?,
            Command::Ls(args) => ls::execute(args, &daemon).await?,
            Command::Inspect(args) => inspect::execute(args, &daemon).await?,
            Command::Update(args) => update::execute(args, &daemon).await?,
            Command::Watch(args) => watch::execute(args, &daemon).await?,
            Command::Ps(args) => ps::execute(args, &daemon).await?,
            Command::Kill(args) => kill::execute(args, &daemon).await?,
            Command::Runs(args) => runs::execute(args, &daemon).await?,
            Command::Image(args) => image::execute(args, &daemon).await?,
            Command::Df(args) => df::execute(args, &daemon).await?,
            Command::Pool(args) => pool::execute(args, &daemon).await?,
            Command::Version(args) => version::execute(args, &daemon).await?,
            Command::Completion(args) => completion::execute(args)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Where the daemon is. Nothing is connected before a subcommand needs it.
#[derive(Debug)]
pub(crate) struct Daemon {
    endpoint: String,
}

impl Daemon {
    /// Connects.
    pub(crate) async fn connect(&self) -> Result<Client, lodge_client::Error> {
        match self.endpoint.as_str() {
            // An empty variable counts as one that is not set.
            "" => Client::connect(DEFAULT_ENDPOINT).await,
            endpoint => Client::connect(endpoint).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
