//! `pagelith completions` and `pagelith man`: the command line, for shells and for `man`.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::exit::RunStatus;
use crate::output::out;

/// Print the completions of the command line for a shell.
#[derive(Args, Debug)]
#[command(after_help = "Example: pagelith completions bash > /etc/bash_completion.d/pagelith")]
pub(crate) struct CompletionsArgs {
    /// Name of the shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Write the manual pages of the program and of each command into a directory.
#[derive(Args, Debug)]
#[command(after_help = "Example: pagelith man /usr/local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Directory that exists
    dir: PathBuf,
}

pub(crate) fn completions(
    args: &CompletionsArgs,
    mut program: Command,
) -> anyhow::Result<RunStatus> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, "pagelith", &mut script);
    out!("{}", String::from_utf8(script)?.trim_end())?;
    Ok(RunStatus::Clean)
}

pub(crate) fn man(args: &ManArgs, program: Command) -> anyhow::Result<RunStatus> {
    clap_mangen::generate_to(program, &args.dir)
        .with_context(|| format!("cannot write the manual pages dir={}", args.dir.display()))?;
    Ok(RunStatus::Clean)
}
