//! The store over the real kernel while its devices fail: loop devices, a FUSE fault disk, power
//! cuts. Needs root; lanes that cannot run on this machine are reported and counted.
//!
//! ```text
//! cargo run --manifest-path sim/kernel/Cargo.toml -- [--seconds N] [--runs N] [--seed N] [--lane NAME] [--results FILE]
//! ```
//!
//! Each run of a lane is a process with its own directory, so that a hang, a crash or an abort ends
//! only that run.
#![allow(
    clippy::disallowed_methods,
    reason = "a test program: it starts processes, looks at files and the clock"
)]
#![allow(clippy::print_stdout, reason = "its results")]

mod fault_disk;
#[allow(dead_code, reason = "the engine's tests use the rest")]
#[path = "../../../engine/tests/killed/mod.rs"]
mod killed;
mod lanes;
#[allow(dead_code, reason = "the engine's tests use the rest")]
#[path = "../../../engine/tests/loop_device/mod.rs"]
mod loop_device;
mod report;
mod runner;
mod work;

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::var_os(killed::CHILD).is_some() {
        killed::workload::child();
        return ExitCode::SUCCESS;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some(runner::RUN) => runner::execute_run(&args[1..]),
        _ => match runner::Args::of(&args) {
            Ok(wanted) => runner::run(&wanted),
            Err(why) => {
                eprintln!("{why}");
                ExitCode::from(2)
            }
        },
    }
}
