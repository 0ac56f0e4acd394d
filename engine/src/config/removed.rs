//! The table of removed settings. A file or an environment that still sets one is refused with the
//! version that dropped it and the remedy, instead of the suggestion that an unknown name gets.

use super::error::Problem;
use super::fields::env_name;

/// A setting that earlier builds had. Its name is never given to another setting.
struct RemovedSetting {
    path: &'static str,
    /// The first version without it.
    version: &'static str,
    /// The remedy, after "was removed in version V: ".
    advice: &'static str,
}

static REMOVED: [RemovedSetting; 6] = [
    RemovedSetting {
        path: "dram.lanes",
        version: "0.1.0",
        advice: "leave it out, pages leave DRAM in one order",
    },
    RemovedSetting {
        path: "ssd.ring",
        version: "0.1.0",
        advice: "leave it out, every ring is what \"plain\" was",
    },
    RemovedSetting {
        path: "ssd.sqpoll_idle_ms",
        version: "0.1.0",
        advice: "leave it out, no kernel thread polls the rings",
    },
    RemovedSetting {
        path: "ssd.iopoll",
        version: "0.1.0",
        advice: "leave it out, reads complete by interrupt",
    },
    RemovedSetting {
        path: "ssd.shared",
        version: "0.1.0",
        advice: "leave it out, the store reads hits from SSD for its clients",
    },
    RemovedSetting {
        path: "index.constant_fingerprint",
        version: "0.1.0",
        advice: "leave it out, it was for tests of the store",
    },
];

/// The problem of a setting at `path` in a file, if `path` was removed.
pub(super) fn removed_key(path: &str) -> Option<Problem> {
    let removed = REMOVED.iter().find(|removed| removed.path == path)?;
    Some(removed.problem(path.to_owned()))
}

/// The problem of an environment variable, if its setting was removed.
pub(super) fn removed_variable(name: &str) -> Option<Problem> {
    let removed = REMOVED.iter().find(|removed| env_name(removed.path) == name)?;
    Some(removed.problem(name.to_owned()))
}

impl RemovedSetting {
    fn problem(&self, field: String) -> Problem {
        Problem {
            field,
            message: format!("was removed in version {}: {}", self.version, self.advice),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, ConfigError, fields};

    fn only(result: Result<Config, ConfigError>) -> (String, String) {
        let problem = <[Problem; 1]>::try_from(result.expect_err("refused").problems);
        let [Problem { field, message }] = problem.expect("one problem");
        (field, message)
    }

    #[test]
    fn removed_setting_in_any_layer_is_refused_by_name_version_and_advice() {
        for removed in &REMOVED {
            let (section, key) = removed.path.split_once('.').expect("a section");
            let message = format!("was removed in version {}: {}", removed.version, removed.advice);
            let in_file = (removed.path.to_owned(), message.clone());
            // The value's type does not matter, not even for a table.
            for value in ["1", "\"plain\"", "{ a = 1 }"] {
                let toml = format!("[{section}]\n{key} = {value}");
                assert_eq!(only(Config::from_toml_str(&toml)), in_file, "{toml}");
            }
            for value in ["null", "false", r#"{"a": 1}"#] {
                let json = format!(r#"{{"{section}": {{"{key}": {value}}}}}"#);
                assert_eq!(only(Config::from_json_str(&json)), in_file, "{json}");
                let nested =
                    serde_json::from_str::<Config>(&json).expect_err("refused").to_string();
                assert!(nested.contains(&message), "{nested}");
            }
            let variable = format!("PAGELITH_{}__{}", section.to_uppercase(), key.to_uppercase());
            let in_environment = (variable.clone(), message);
            assert_eq!(only(Config::builder().env([(variable, "1")]).build()), in_environment);
        }
    }

    #[test]
    fn removed_setting_is_unknown_and_its_version_is_past() {
        let number = |version: &str| -> Vec<u32> {
            version.split('.').map(|part| part.parse().expect("a number")).collect()
        };
        for removed in &REMOVED {
            assert!(fields().iter().all(|field| field.path() != removed.path), "{}", removed.path);
            assert!(
                number(removed.version) <= number(env!("CARGO_PKG_VERSION")),
                "{}",
                removed.path
            );
        }
    }
}
