//! Escapes text from a peer before it is printed.

use std::fmt::{self, Display, Write};

/// Prints a peer's text on one line. Control characters, and characters that are invisible or
/// change how others are displayed, are escaped.
#[derive(Clone, Copy, Debug)]
pub struct Printable<'a>(pub &'a str);

impl Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                // Printed unchanged; `escape_debug` would escape them.
                '\'' | '"' | '\\' => f.write_char(c)?,
                _ => write!(f, "{}", c.escape_debug())?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_peer_text_are_escaped() {
        let hostile =
            "busy\n\r\t\0\u{1b}[2J\u{7f}\u{9b}31m\u{202e}\u{2066}\u{200b}\u{2028}\u{feff}\u{e0041}";
        let shown = Printable(hostile).to_string();
        let expected = "busy\\n\\r\\t\\0\\u{1b}[2J\\u{7f}\\u{9b}31m\\u{202e}\\u{2066}\\u{200b}\\u{2028}\\u{feff}\\u{e0041}";
        assert_eq!(shown, expected);
        let plain = "the key \"a\" isn't known: größe=1 path=C:\\x 日本";
        assert_eq!(Printable(plain).to_string(), plain);
    }
}
