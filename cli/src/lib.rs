//! The program `pagelith`, as a library so that tests can use its parts. One file per command.
//! `inspect` and `verify` read a store with `layouts` only, without the engine.
#![forbid(unsafe_code)]
// `print!` and its kin panic if the output cannot be written: see `output`.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![allow(
    clippy::disallowed_methods,
    reason = "the program is the outermost layer: it uses the real clock and the real files"
)]

mod attached_stats;
mod bench;
mod client_limits;
mod content;
mod doctor;
mod end_signals;
mod exit;
mod generated;
mod http;
mod inspect;
mod keys;
mod latency;
mod machine;
mod meter;
mod on_disk;
mod open_report;
mod output;
mod peers;
mod progress;
mod quantity;
mod replay;
mod rng;
mod serve;
mod settings;
pub mod simulate;
mod stats;
mod temp_dir;
mod top;
pub mod trace;
mod verify;
pub mod workload;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Command as Program, CommandFactory, FromArgMatches, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::settings::StoreDefaults;

/// A log-structured, tiered page store for LLM KV caches.
///
/// Results go to stdout, everything else to stderr. Exit status of every command: 0 without
/// problems, 1 if it ran and found a problem, 2 if it could not run.
#[derive(Parser, Debug)]
#[command(name = "pagelith", version, after_help = "Example: pagelith replay")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Replay(Box<replay::ReplayArgs>),
    Simulate(simulate::SimulateArgs),
    Bench(bench::BenchArgs),
    Serve(Box<serve::ServeArgs>),
    Stats(stats::StatsArgs),
    Top(top::TopArgs),
    Key(keys::KeyArgs),
    Config(settings::ConfigArgs),
    Doctor(doctor::DoctorArgs),
    Inspect(inspect::InspectArgs),
    Verify(verify::VerifyArgs),
    Completions(generated::CompletionsArgs),
    Man(generated::ManArgs),
}

/// The program's command line. Each command's help states the defaults of that command.
fn program() -> Program {
    let store_defaults = |command| StoreDefaults::of_the_store().in_help(command);
    Cli::command()
        .mut_subcommand("replay", |command| replay::DEFAULTS.in_help(command))
        .mut_subcommand("serve", |command| serve::defaults(None).in_help(command))
        .mut_subcommand("config", |command| {
            command.mut_subcommand("check", store_defaults).mut_subcommand("show", store_defaults)
        })
}

/// Run the program with the process's arguments.
pub fn main() -> ExitCode {
    ExitCode::from(run(std::env::args_os()))
}

/// Run the program with these arguments, of which the first is its name. Returns the exit status.
///
/// For a process that has a `main` of its own: the Python package's.
pub fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    // With a handler, a write beyond RLIMIT_FSIZE fails instead of ending the process.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    // Log events go to stderr, by default only warnings and errors (RUST_LOG); stdout is for
    // results.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| output::EventWriter);
    // A second call in one process keeps the first log.
    let _ = log.try_init();
    let matches = program().try_get_matches_from(args);
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        // Wrong flags, or a request for help. A closed pipe is no error.
        Err(error) => {
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(2);
        }
    };
    exit::status(match cli.command {
        Command::Replay(args) => replay::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Stats(args) => stats::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Key(args) => keys::run(&args),
        Command::Config(args) => settings::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Completions(args) => generated::completions(&args, program()),
        Command::Man(args) => generated::man(&args, program()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_of_each_command_has_an_example_that_names_it() {
        let program = program();
        let commands = program.get_subcommands().map(Program::get_name).collect::<Vec<_>>();
        assert!(commands.len() > 9, "{commands:?}");
        for command in program.get_subcommands() {
            let example = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let start = format!("Example: pagelith {} ", command.get_name());
            assert!(example.starts_with(&start), "{start:?} {example:?}");
        }
    }
}
