//! What is wrong with a configuration: every problem, each with the field it is about.

use std::fmt;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The path of the setting, such as `ssd.segment_bytes`; for an unknown setting the path or the
    /// environment variable as it was written; `(file)` for text that is not TOML or JSON at all.
    pub field: String,
    /// What would be right, and what was found. One line, lower case, `key=value` at the end.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// A refused configuration. Holds at least one problem; displays one line each.
///
/// The caller's remedy is always the same: correct the settings named and open again. Nothing was created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Every problem that could be told, in the order file, environment, code, relations between settings.
    pub problems: Vec<Problem>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, problem) in self.problems.iter().enumerate() {
            if number > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// `Ok(value)` if there is no problem.
pub(super) fn unless_problems<T>(problems: Vec<Problem>, value: T) -> Result<T, ConfigError> {
    if problems.is_empty() { Ok(value) } else { Err(ConfigError { problems }) }
}
