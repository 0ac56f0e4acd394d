//! Exit statuses, the same for every command: 0 all is well; 1 the command ran and found something wrong
//! (damage, wrong bytes); 2 it could not run (bad flags, no store, a device that failed).

use std::process::ExitCode;

use crate::output::log;

/// How a command that ran ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// All is well.
    Fine,
    /// Something is wrong, and has been named.
    Wrong,
}

/// The exit status of a command; an error is said on stderr.
pub(crate) fn code(result: anyhow::Result<Verdict>) -> ExitCode {
    match result {
        Ok(Verdict::Fine) => ExitCode::SUCCESS,
        Ok(Verdict::Wrong) => ExitCode::from(1),
        Err(error) => {
            log!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
