//! A configuration from a file and the environment is refused with every problem named, or is
//! valid: it parses from its own text, and its memory plan fits the machine.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagelith::config::{Config, ConfigError, ConfigFormat, ENV_PREFIX, MachineLimits};

/// Separates the file's text from the environment, and variables from each other.
const NEXT: u8 = 0;

fuzz_target!(|data: &[u8]| {
    let Some((choice, rest)) = data.split_first() else { return };
    let mut parts = rest.split(|b| *b == NEXT);
    let text = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
    let variables: Vec<(String, String)> = parts
        .take(20)
        .map(|part| {
            let part = String::from_utf8_lossy(part);
            let (name, value) = part.split_once('=').unwrap_or((&part, ""));
            (format!("{ENV_PREFIX}{name}"), value.to_owned())
        })
        .collect();
    let format = if choice & 1 == 0 { ConfigFormat::Toml } else { ConfigFormat::Json };
    let builder = || Config::builder().file(format, &text).env(variables.clone());
    match builder().build() {
        Err(refused) => check(&refused),
        Ok(config) => {
            let again = Config::from_json_str(&config.to_json_string()).expect("its own text");
            assert_eq!(again, config);
        }
    }
    let facts = MachineLimits::new(1 << (20 + choice / 8), "fuzz".into());
    match builder().validate(&facts) {
        Err(refused) => check(&refused),
        Ok(valid) => {
            assert!(valid.memory_plan().total <= facts.memory_bytes);
            assert_eq!(valid.has_ssd(), !valid.ssd_dirs().is_empty());
            let again =
                valid.config().clone().validate(&facts).expect("a valid configuration stays valid");
            assert_eq!(again.config(), valid.config());
        }
    }
});

fn check(refused: &ConfigError) {
    assert!(!refused.problems.is_empty());
    for problem in &refused.problems {
        assert!(!problem.field.is_empty() && !problem.message.is_empty(), "{problem:?}");
        assert!(!problem.to_string().contains('\n'), "one line: {problem:?}");
    }
}
