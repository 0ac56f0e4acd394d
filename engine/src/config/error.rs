//! Configuration errors: every problem, each with its field.

use std::fmt;

/// A problem with one setting.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// The path of the setting, such as `ssd.segment_bytes`; for an unknown setting the path or the
    /// environment variable as written; `(file)` for text that is not TOML or JSON.
    pub field: String,
    /// The expected value and the actual one. One line, lower case, `key=value` at the end.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// A refused configuration. Contains at least one problem; displays one line each.
///
/// The caller's remedy is always the same: correct the listed settings and open again. Nothing was
/// created.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConfigError {
    /// All problems, in the order file, environment, code, relations between settings.
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
pub(super) fn ok_unless_problems<T>(problems: Vec<Problem>, value: T) -> Result<T, ConfigError> {
    if problems.is_empty() { Ok(value) } else { Err(ConfigError { problems }) }
}
