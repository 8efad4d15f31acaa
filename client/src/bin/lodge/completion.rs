//! `lodge completion`: scripts for shells.

use std::io;

use anyhow::Result;
use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::{cli, terminal};

/// Print a completion script for your shell
///
/// For bash, for instance: lodge completion bash >/etc/bash_completion.d/lodge
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which shell
    shell: Supported,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Supported {
    Bash,
    Zsh,
    Fish,
}

pub(crate) fn execute(args: Args) -> Result<()> {
    let shell = match args.shell {
        Supported::Bash => Shell::Bash,
        Supported::Zsh => Shell::Zsh,
        Supported::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut cli::Cli::command(), "lodge", &mut script);
    terminal::raw(&mut io::stdout().lock(), &script)
}
