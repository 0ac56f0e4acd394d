//! A check of the machine, and the text of many.

use serde::Serialize;

/// The outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// Nothing is missing.
    Ok,
    /// A store runs, with less: slower, or without a feature.
    Note,
    /// A requested directory or an installed part does not work.
    Problem,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Note => "note",
            State::Problem => "problem",
        }
    }
}

/// The order of the fields is the order of the JSON keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) state: State,
    pub(super) found: String,
    /// The remedy; `None` if none is needed.
    pub(super) remedy: Option<String>,
}

impl Check {
    pub(super) fn ok(name: &'static str, found: impl Into<String>) -> Check {
        Check { name, state: State::Ok, found: found.into(), remedy: None }
    }

    pub(super) fn note(
        name: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Check {
        Check { name, state: State::Note, found: found.into(), remedy: Some(remedy.into()) }
    }

    pub(super) fn problem(
        name: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Check {
        Check { state: State::Problem, ..Check::note(name, found, remedy) }
    }
}

/// One line for each check, in columns, and its remedy below.
pub(super) fn text(checks: &[Check]) -> String {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut lines = Vec::new();
    for Check { name, state, found, remedy } in checks {
        lines.push(format!("{:<7}  {name:<width$}  {found}", state.name()));
        if let Some(remedy) = remedy {
            lines.push(format!("{:<7}  {:<width$}  remedy: {remedy}", "", ""));
        }
    }
    lines.join("\n")
}

/// A number of bytes in a binary unit with one decimal.
pub(super) fn size(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.iter().find(|(_, shift)| bytes >> shift > 0) {
        Some((unit, shift)) => format!("{:.1}{unit}", bytes as f64 / (1u64 << shift) as f64),
        None => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_columns_and_remedy_below_its_check() {
        let checks = [Check::ok("cpus", "4"), Check::problem("direct-io", "none", "mount it")];
        let right = "ok       cpus       4\n\
                     problem  direct-io  none\n                    remedy: mount it";
        assert_eq!(text(&checks), right);
    }

    #[test]
    fn json_has_every_field_and_state_in_lower_case() {
        let json = serde_json::to_string(&Check::note("numa", "x", "y")).unwrap();
        assert_eq!(json, r#"{"name":"numa","state":"note","found":"x","remedy":"y"}"#);
        assert!(
            serde_json::to_string(&Check::ok("a", "b")).unwrap().ends_with(r#""remedy":null}"#)
        );
    }

    #[test]
    fn size_has_largest_unit_that_is_not_below_one() {
        let texts = [0, 1023, 1024, 3 << 19, 64 << 30, u64::MAX].map(size);
        assert_eq!(texts, ["0B", "1023B", "1.0KiB", "1.5MiB", "64.0GiB", "16777216.0TiB"]);
    }
}
