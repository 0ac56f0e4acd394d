//! A check of the machine, and the text of many.

use serde::Serialize;

/// Columns of the longest state.
const STATE_COLUMNS: usize = 7;
/// Least columns of a text, however narrow the terminal.
const LEAST_ROOM: usize = 30;

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

/// One line for each check, in columns, and its remedy below. With `columns` of a terminal, longer
/// lines continue below their text.
pub(super) fn text(checks: &[Check], columns: Option<usize>) -> String {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let indent = STATE_COLUMNS + width + 4;
    let room = columns.map_or(usize::MAX, |columns| columns.saturating_sub(indent).max(LEAST_ROOM));
    let mut lines = Vec::new();
    for Check { name, state, found, remedy } in checks {
        let head = format!("{:<STATE_COLUMNS$}  {name:<width$}  ", state.name());
        let remedy = remedy.iter().map(|remedy| format!("remedy: {remedy}"));
        let texts = std::iter::once(found.clone()).chain(remedy);
        let mut parts = texts.flat_map(|text| wrapped(&text, room));
        lines.push(head + &parts.next().unwrap_or_default());
        lines.extend(parts.map(|part| format!("{:indent$}{part}", "")));
    }
    lines.join("\n")
}

/// A text in lines of at most `room` characters, except for words that are longer.
fn wrapped(text: &str, room: usize) -> Vec<String> {
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in text.split(' ') {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > room {
            lines.push(std::mem::take(&mut line));
        } else if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_columns_and_remedy_below_its_check() {
        let checks = [Check::ok("cpus", "4"), Check::problem("direct-io", "none", "mount it")];
        let right = "ok       cpus       4\n\
                     problem  direct-io  none\n                    remedy: mount it";
        assert_eq!(text(&checks, None), right);
    }

    #[test]
    fn text_for_a_terminal_continues_below_itself() {
        let long = "memory is locked and counted, so raise its limit";
        let text = text(&[Check::note("memlock", "8MiB", long)], Some(50));
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "note     memlock  8MiB");
        assert_eq!(lines[1], format!("{:18}remedy: memory is locked and", ""));
        assert_eq!(lines[2], format!("{:18}counted, so raise its limit", ""));
    }

    #[test]
    fn json_has_every_field_and_state_in_lower_case() {
        let json = serde_json::to_string(&Check::note("numa", "x", "y")).unwrap();
        assert_eq!(json, r#"{"name":"numa","state":"note","found":"x","remedy":"y"}"#);
        assert!(
            serde_json::to_string(&Check::ok("a", "b")).unwrap().ends_with(r#""remedy":null}"#)
        );
    }
}
