//! Exit statuses, the same for every command: 0 without problems; 1 if the command ran and found a
//! problem (damage, wrong bytes); 2 if it could not run (bad flags, no store, a device error).

use crate::output::log;

/// The result of a command that ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunStatus {
    /// No problem was found.
    Clean,
    /// A problem was found and printed.
    Problems,
}

/// The exit status of a command. Prints an error on stderr.
pub(crate) fn status(result: anyhow::Result<RunStatus>) -> u8 {
    match result {
        Ok(RunStatus::Clean) => 0,
        Ok(RunStatus::Problems) => 1,
        Err(error) => {
            log!("error: {error:#}");
            2
        }
    }
}
