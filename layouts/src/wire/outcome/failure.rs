//! Failures on the wire: a tag for the caller's reaction, the errno, and a human-readable text.

/// Kind of an error, which determines the caller's reaction. These are the kinds of the store's own
/// errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ErrorTag {
    /// The request is invalid.
    Invalid = 1,
    /// A limit is reached at present.
    Busy = 2,
    /// Out of memory or disk space.
    NoSpace = 3,
    /// A device, a file or a peer failed.
    Unavailable = 4,
    /// Stored bytes failed verification, and there is no other copy.
    Damaged = 5,
    /// The format or configuration differs.
    Incompatible = 6,
    /// The store is closed.
    Closed = 7,
    /// Not allowed.
    Denied = 8,
    /// A bug.
    Internal = 9,
}

impl ErrorTag {
    /// All tags.
    pub const ALL: [ErrorTag; 9] = [
        ErrorTag::Invalid,
        ErrorTag::Busy,
        ErrorTag::NoSpace,
        ErrorTag::Unavailable,
        ErrorTag::Damaged,
        ErrorTag::Incompatible,
        ErrorTag::Closed,
        ErrorTag::Denied,
        ErrorTag::Internal,
    ];

    /// The tag with this number; no tag has number 0.
    pub fn from_tag(tag: u8) -> Option<ErrorTag> {
        ErrorTag::ALL.into_iter().find(|t| *t as u8 == tag)
    }
}

/// A failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure<'a> {
    /// Kind of error.
    pub error: ErrorTag,
    /// The kernel's errno; 0 if none.
    pub errno: i32,
    /// Human-readable text, lower-case, `key=value` at the end; truncated to [`TEXT_MAX`] bytes.
    pub text: &'a str,
}

/// Longest text of a failure in bytes.
pub const TEXT_MAX: usize = 512;
/// Most bytes of all texts of an outcome, except that each text may have [`TEXT_LEAST`] bytes.
const TEXTS_MAX: usize = 64 << 10;
const TEXT_LEAST: usize = 64;

impl<'a> Failure<'a> {
    /// The text to send in an outcome with `failures` failures, truncated to its share of
    /// [`TEXTS_MAX`].
    pub(super) fn truncated_text(&self, failures: usize) -> &'a str {
        let most = (TEXTS_MAX / failures.max(1)).clamp(TEXT_LEAST, TEXT_MAX);
        let mut end = self.text.len().min(most);
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        &self.text[..end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_text_is_truncated_at_character_boundary() {
        let long = "\u{e9}".repeat(300);
        let failure = Failure { error: ErrorTag::Busy, errno: 0, text: &long[..] };
        assert_eq!(failure.truncated_text(1).len(), 512);
        let odd = format!("x{long}");
        assert_eq!(Failure { text: &odd, ..failure }.truncated_text(128).len(), 511);
        assert_eq!([129, 1000, usize::MAX].map(|n| failure.truncated_text(n).len()), [508, 64, 64]);
    }
}
