//! Messages for keys that are no setting.

use super::error::Problem;
use super::fields::{ENV_PREFIX, Field, field_at, fields};
use super::node::quoted;

/// Below this similarity (1 is equal) a suggestion confuses more than it helps.
const LIKENESS_MIN: f64 = 0.6;
/// Longer names get no suggestion: the comparison is quadratic and no setting is near that long.
const NAME_BYTES_MAX: usize = 64;

/// The problem of a key at `path` in a file, and the setting that was probably intended.
pub(super) fn unknown_key(path: &str, keys: &[&str]) -> (Problem, Option<&'static Field>) {
    let meant = closest(&keys.join("."));
    let message = match meant {
        // The key itself contains a dot, as in {"dram.bytes": 1}.
        Some(field) if keys.concat().contains('.') => {
            format!("is not a setting; did you mean {}, a key inside a table?", field.path())
        }
        Some(field) => format!("is not a setting; did you mean {}?", field.path()),
        None => no_suggestion(keys),
    };
    (Problem { field: path.to_owned(), message }, meant)
}

/// The problem of an environment variable, and the setting that was probably intended.
pub(super) fn unknown_variable(name: &str) -> (Problem, Option<&'static Field>) {
    let rest = name.strip_prefix(ENV_PREFIX).unwrap_or(name);
    let path = rest.trim_start_matches('_').to_ascii_lowercase().replace("__", ".");
    // A single `_` in place of the `__` for a dot is a likely mistake, so it is tried as a dot too.
    let meant = closest(&path).or_else(|| closest(&path.replacen('_', ".", 1)));
    let message = match meant {
        Some(field) => format!("is not a setting; did you mean {}?", field.env_name()),
        None => format!(
            "is not a setting; a setting is {ENV_PREFIX} and its path with __ for dots, such as {}",
            fields()[3].env_name()
        ),
    };
    (Problem { field: display_name(name), message }, meant)
}

/// `name` unchanged if it is plain, else quoted and escaped so that it stays on one line.
pub(super) fn display_name(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(plain) {
        name.to_owned()
    } else {
        quoted(name)
    }
}

/// A message that lists the settings at the level of the unknown key.
fn no_suggestion(keys: &[&str]) -> String {
    let inside = |section: &str| -> Vec<&'static str> {
        let of_section = |field: &Field| match field.path().split_once('.') {
            Some((found, key)) => (found == section).then_some(key),
            None => None,
        };
        fields().iter().filter_map(of_section).collect()
    };
    match keys.first().map(|section| inside(section)) {
        Some(known) if !known.is_empty() && keys.len() > 1 => {
            format!("is not a setting; {} has {}", keys[0], known.join(", "))
        }
        _ => {
            let mut top: Vec<&str> = Vec::new();
            for field in fields() {
                let first = field.path().split('.').next().unwrap_or(field.path());
                if !top.contains(&first) {
                    top.push(first);
                }
            }
            format!("is not a setting; top-level keys are {}", top.join(", "))
        }
    }
}

fn closest(path: &str) -> Option<&'static Field> {
    if path.len() > NAME_BYTES_MAX {
        return None;
    }
    let path = path.to_ascii_lowercase().replace('-', "_");
    if let Some(field) = field_at(&path) {
        return Some(field);
    }
    let mut best: Option<(f64, &'static Field)> = None;
    for field in fields() {
        let likeness = strsim::normalized_damerau_levenshtein(&path, field.path());
        if likeness >= LIKENESS_MIN && best.is_none_or(|(most, _)| likeness > most) {
            best = Some((likeness, field));
        }
    }
    best.map(|(_, field)| field)
}
