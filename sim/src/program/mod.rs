//! The program `pagelith-sim`.

// Defined before use, in place of the standard macros, which panic when stdout is closed.
macro_rules! println {
    ($($text:tt)*) => { $crate::program::printed(format_args!("{}\n", format_args!($($text)*))) };
}
macro_rules! print {
    ($($text:tt)*) => { $crate::program::printed(format_args!($($text)*)) };
}
macro_rules! eprintln {
    ($($text:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("{}\n", format_args!($($text)*)));
    }};
}

mod links;
mod matrix;
mod mutants;
mod plan_args;
mod replay;
mod report;
mod seeds;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Prints to stdout; exits quietly when the reader has closed the pipe.
fn printed(text: std::fmt::Arguments<'_>) {
    use std::io::{ErrorKind, Write, stdout};
    let mut out = stdout().lock();
    match out.write_fmt(text).and_then(|()| out.flush()) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => {
            eprintln!("error: cannot write to stdout: {error}");
            std::process::exit(2);
        }
    }
}

#[derive(Parser)]
#[command(name = "pagelith-sim", about = "Runs the store over a simulated machine, one seed a run")]
struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a range of seeds; prints one JSON object with the sums at the end.
    Run(seeds::RunArgs),
    /// Run a range of seeds of stores and clients over simulated links.
    Links(links::LinksArgs),
    /// Run one seed and print every step and answer.
    Replay(replay::ReplayArgs),
    /// Run seeds until the first finding.
    Hunt(mutants::HuntArgs),
    /// Plant each bug in turn and check that it is caught; only in a build that has them, which
    /// `sim/mutants.sh` makes.
    Mutants(mutants::MutantsArgs),
    /// Write `docs/faults.md` from the stored results.
    Report(report::ReportArgs),
}

/// Runs the command line.
pub fn main() -> ExitCode {
    match Program::parse().command {
        Command::Run(args) => seeds::run(&args),
        Command::Links(args) => links::links(&args),
        Command::Replay(args) => replay::replay(&args),
        Command::Hunt(args) => mutants::hunt(&args),
        Command::Mutants(args) => mutants::mutants(&args),
        Command::Report(args) => report::report(&args),
    }
}
