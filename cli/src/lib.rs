//! The program `pagelith`, as a library so that tests can use its parts. One file per command.
//! `inspect` and `verify` read a store with `layouts` only, without the engine.
#![forbid(unsafe_code)]
// `print!` and its kin panic if the output cannot be written: see `output`.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]
#![allow(
    clippy::disallowed_methods,
    reason = "the program is the outermost layer: it uses the real clock and the real files"
)]

mod bench;
mod client_limits;
mod content;
mod doctor;
mod exit;
mod http;
mod inspect;
mod keys;
mod latency;
mod log_limit;
mod machine;
mod meter;
mod on_disk;
mod open_report;
mod output;
mod peers;
mod progress;
mod replay;
mod rng;
mod serve;
mod settings;
pub mod simulate;
mod temp_dir;
pub mod trace;
mod verify;
pub mod workload;

use std::process::ExitCode;
use std::sync::Arc;

use clap::{Command as Program, CommandFactory, FromArgMatches, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::settings::StoreDefaults;

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
    Simulate(simulate::SimulateArgs),
    Bench(bench::BenchArgs),
    Serve(Box<serve::ServeArgs>),
    Key(keys::KeyArgs),
    Config(settings::ConfigArgs),
    Doctor(doctor::DoctorArgs),
    Inspect(inspect::InspectArgs),
    Verify(verify::VerifyArgs),
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
    // With a handler, a write beyond RLIMIT_FSIZE fails instead of ending the process.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    // Log events go to stderr, by default only warnings and errors (RUST_LOG); stdout is for
    // results.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| output::EventWriter).init();
    let matches = program().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    exit::code(match cli.command {
        Command::Replay(args) => replay::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Key(args) => keys::run(&args),
        Command::Config(args) => settings::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Verify(args) => verify::run(&args),
    })
}
