//! Bounds how deep a TOML text nests, before it is parsed.
//!
//! The parser bounds each construct (80 parts a dotted key, 80 inline tables, 80 parts a header),
//! but not their product: 12 KiB of dotted keys inside inline tables nest 6000 deep and overflow a
//! 2 MiB stack, in the parser and again when the tree is dropped. Every level costs a `.`, `{` or
//! `[` outside of strings and comments, so counting those bounds the depth.

/// More than twice what all settings in any spelling have (one dot or bracket each), and as deep as
/// serde_json goes; 512 levels were seen to need over half a MiB of stack.
const LEVELS_MAX: usize = 128;

/// Whether the text holds more `.`, `{` and `[` outside of strings and comments than a
/// configuration can.
pub(super) fn nests_too_deep(toml: &str) -> bool {
    let mut rest = toml;
    let mut levels = 0;
    while let Some(at) = rest.find(['.', '{', '[', '"', '\'', '#']) {
        let found = &rest[at..];
        rest = match found.as_bytes()[0] {
            b'#' => after(found, "\n"),
            b'"' if found.starts_with("\"\"\"") => after_quoted(&found[3..], "\"\"\"", true),
            b'\'' if found.starts_with("'''") => after_quoted(&found[3..], "'''", false),
            b'"' => after_quoted(&found[1..], "\"", true),
            b'\'' => after_quoted(&found[1..], "'", false),
            _ => {
                levels += 1;
                &found[1..]
            }
        };
    }
    levels > LEVELS_MAX
}

/// The text after the first `end`.
fn after<'a>(text: &'a str, end: &str) -> &'a str {
    text.find(end).map_or("", |at| &text[at + end.len()..])
}

/// The text after the string whose inside `text` starts with. An unclosed one-line string ends with
/// its line, as it does for the parser, so that both always agree on what is a string.
fn after_quoted<'a>(text: &'a str, close: &str, escapes: bool) -> &'a str {
    let mut rest = text;
    while let Some(at) = rest.find(|c| c == '\\' || c == '\n' || close.starts_with(c)) {
        let found = &rest[at..];
        let mut chars = found.chars();
        let first = chars.next();
        if let Some(rest) = found.strip_prefix(close) {
            return after_close(rest, close);
        }
        if first == Some('\n') && close.len() == 1 {
            return chars.as_str();
        }
        if first == Some('\\') && escapes && !chars.as_str().starts_with('\n') {
            chars.next();
        }
        rest = chars.as_str();
    }
    ""
}

/// A string of three quotes may end in one or two more quotes that belong to it.
fn after_close<'a>(mut rest: &'a str, close: &str) -> &'a str {
    for _ in 1..close.len() {
        rest = rest.strip_prefix(&close[..1]).unwrap_or(rest);
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_nesting_tokens_are_counted() {
        let many = ".".repeat(LEVELS_MAX + 1);
        let hidden = [
            format!("# {many}\n"),
            format!("a = \"{many}\""),
            format!("a = '{many}'"),
            format!("a = \"\"\"\n{many}\n\"\"\""),
            format!("a = '''\n{many}\n'''"),
            format!("a = \"\\\"{many}\""),
            format!("a = \"\"\"\\\"\"\"{many}\"\"\""),
        ];
        for text in &hidden {
            assert!(!nests_too_deep(text), "text={text}");
        }
        let seen = [
            many.clone(),
            format!("{many}#"),
            format!("# x\n{many}"),
            format!("a = \"\\\\\"{many}"),
            format!("a = '\\'{many}"),
            format!("a = \"open\n{many}"),
            format!("a = \"open\\\n{many}"),
            format!("a = \"\"{many}"),
            format!("a = '''x'''{many}"),
            format!("a = '''x''''{many}"),
            format!("a = \"\"\"x\"\"\"\"\"{many}"),
            format!("a = \"\"\"\"\"\"{many}"),
        ];
        for text in &seen {
            assert!(nests_too_deep(text), "text={text}");
        }
        assert!(!nests_too_deep(&"[".repeat(LEVELS_MAX)));
        assert!(nests_too_deep(&"{".repeat(LEVELS_MAX + 1)));
    }
}
