//! Helpers shared by the tests of the program.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]
#![allow(clippy::disallowed_methods, reason = "a test sets up and looks at real files")]

pub mod filled_store;
pub mod fixture;
pub mod hostile_socket;
pub mod seccomp;
pub mod store_process;
pub mod traces;

use std::process::{Command, Output};

/// The result of a run of the program.
#[derive(Debug)]
pub struct ProgramOutput {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl ProgramOutput {
    /// The JSON object on stdout.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}\n{self:?}"))
    }
}

/// Run the program without settings from the environment.
pub fn pagelith<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> ProgramOutput {
    pagelith_with(args, &[])
}

/// Run the program with these variables.
pub fn pagelith_with<S: AsRef<std::ffi::OsStr>>(args: &[S], env: &[(&str, &str)]) -> ProgramOutput {
    let mut command = program();
    let Output { status, stdout, stderr } =
        command.args(args).envs(env.iter().copied()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    ProgramOutput { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

/// The program, without settings from the environment.
fn program() -> Command {
    without_settings(Command::new(env!("CARGO_BIN_EXE_pagelith")))
}

/// Remove all settings from the environment of a command.
pub fn without_settings(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PAGELITH_") || name == "RUST_LOG" {
            command.env_remove(name);
        }
    }
    command
}
