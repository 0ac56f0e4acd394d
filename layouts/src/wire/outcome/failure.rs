//! What went wrong, as it travels: a tag that says what to do, the errno, and words for people.

/// What kind of error: what the caller should do. The kinds of the store's own errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ErrorTag {
    /// The request itself is wrong.
    Invalid = 1,
    /// At a bound for the moment.
    Busy = 2,
    /// No room.
    NoSpace = 3,
    /// A device, a file or a peer did not do its work.
    Unavailable = 4,
    /// Stored bytes failed verification where nothing else can answer.
    Damaged = 5,
    /// Of another format or configuration.
    Incompatible = 6,
    /// The store is closed.
    Closed = 7,
    /// Not allowed.
    Denied = 8,
    /// A bug.
    Internal = 9,
}

impl ErrorTag {
    /// All tags, for tables.
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

    /// The tag of a number; 0 is none.
    pub fn of(tag: u8) -> Option<ErrorTag> {
        ErrorTag::ALL.into_iter().find(|t| *t as u8 == tag)
    }
}

/// A failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure<'a> {
    /// What to do.
    pub error: ErrorTag,
    /// The kernel's errno; 0 where there is none.
    pub errno: i32,
    /// What happened, lower-case, `key=value` at the end; at most [`TEXT_MAX`] bytes, the rest is cut.
    pub text: &'a str,
}

/// Longest text of a failure in bytes.
pub const TEXT_MAX: usize = 512;
/// Bytes of all texts of an outcome, unless they are so many that each has no more than the least.
const TEXTS_MAX: usize = 64 << 10;
const TEXT_LEAST: usize = 64;

impl<'a> Failure<'a> {
    /// The text as it is sent among so many of an outcome: of many each is shorter.
    pub(super) fn sent(&self, among: usize) -> &'a str {
        let most = (TEXTS_MAX / among.max(1)).clamp(TEXT_LEAST, TEXT_MAX);
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
    fn a_text_is_cut_between_characters() {
        let long = "\u{e9}".repeat(300);
        let failure = Failure { error: ErrorTag::Busy, errno: 0, text: &long[..] };
        assert_eq!(failure.sent(1).len(), 512);
        let odd = format!("x{long}");
        assert_eq!(Failure { text: &odd, ..failure }.sent(128).len(), 511);
        assert_eq!([129, 1000, usize::MAX].map(|among| failure.sent(among).len()), [508, 64, 64]);
    }
}
