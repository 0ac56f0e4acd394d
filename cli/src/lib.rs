//! The program `pagelith`, as a library so that its tests can use its parts. One file a command; `inspect`
//! and `verify` read a store with `layouts` alone.
#![forbid(unsafe_code)]
// They panic if their output cannot be written: see `output`.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![allow(
    clippy::disallowed_methods,
    reason = "the program is an edge: it has the real clock and the real files"
)]

mod bench;
mod clients;
mod content;
mod exit;
mod fresh;
mod http;
mod inspect;
mod keys;
mod latency;
mod machine;
mod meter;
mod on_disk;
mod output;
mod peers;
mod refusals;
mod replay;
mod rng;
mod said;
mod serve;
mod settings;
pub mod trace;
mod verify;
pub mod workload;

use std::process::ExitCode;
use std::sync::Arc;

use clap::{Command as Program, CommandFactory, FromArgMatches, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::settings::Defaults;

/// A log-structured, tiered page store for LLM KV caches.
#[derive(Parser, Debug)]
#[command(name = "pagelith", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Replay(Box<replay::ReplayArgs>),
    Bench(bench::BenchArgs),
    Serve(Box<serve::ServeArgs>),
    Key(keys::KeyArgs),
    Config(settings::ConfigArgs),
    Inspect(inspect::InspectArgs),
    Verify(verify::VerifyArgs),
}

/// The program's command line. Each command's help states the defaults of that command.
fn program() -> Program {
    let of_the_store = |command| Defaults::of_the_store().in_help(command);
    Cli::command()
        .mut_subcommand("replay", |command| replay::DEFAULTS.in_help(command))
        .mut_subcommand("serve", |command| serve::defaults(None).in_help(command))
        .mut_subcommand("config", |command| {
            command.mut_subcommand("check", of_the_store).mut_subcommand("show", of_the_store)
        })
}

/// Run the program with the process's arguments.
pub fn main() -> ExitCode {
    // A write beyond RLIMIT_FSIZE, such as one to the log, fails instead of ending the process.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    // Log events go to stderr, warnings and worse unless RUST_LOG says otherwise: stdout is for results.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| output::Events).init();
    let matches = program().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    exit::code(match cli.command {
        Command::Replay(args) => replay::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Key(args) => keys::run(&args),
        Command::Config(args) => settings::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Verify(args) => verify::run(&args),
    })
}
