//! Lines of the log that a stranger can cause: so many a second, and then how many more there were.

use std::time::Duration;

use pagelith::io::clock::Mono;

/// Lines of one second.
const LINES_MAX: u32 = 10;
const SECOND: Duration = Duration::from_secs(1);

/// What was said in this second.
#[derive(Debug, Default)]
pub(crate) struct Sparing {
    since: Option<Mono>,
    said: u32,
    left_out: u64,
    /// The system failed an accept: said once a second.
    failed: bool,
}

/// What is to be said of one refusal.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Due {
    /// Whether it has a line of its own.
    pub line: bool,
    /// How many others were left out before this.
    pub left_out: u64,
}

impl Sparing {
    /// One more refusal, of a peer or of an accept that failed.
    pub(crate) fn refused(&mut self, now: Mono, of_accept: bool) -> Due {
        let mut due = self.passed(now);
        let fits = if of_accept { !std::mem::replace(&mut self.failed, true) } else { self.said < LINES_MAX };
        due.line = fits;
        match (fits, of_accept) {
            (true, false) => self.said += 1,
            (true, true) => {}
            (false, _) => self.left_out += 1,
        }
        due
    }

    /// The count of lines that were left out, due once a second.
    pub(crate) fn passed(&mut self, now: Mono) -> Due {
        let since = *self.since.get_or_insert(now);
        if now.since(since) < SECOND {
            return Due::default();
        }
        let left_out = self.left_out;
        *self = Sparing { since: Some(now), ..Sparing::default() };
        Due { line: false, left_out }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_said_so_often_a_second_and_counted_beyond() {
        let mut sparing = Sparing::default();
        let at = |ms: u64| Mono(5_000_000_000 + ms * 1_000_000);
        let lines =
            |sparing: &mut Sparing, ms| (0..100).filter(|_| sparing.refused(at(ms), false).line).count();
        assert_eq!((lines(&mut sparing, 0), lines(&mut sparing, 999)), (10, 0));
        assert_eq!(sparing.passed(at(999)), Due::default());
        assert_eq!(sparing.passed(at(1000)), Due { line: false, left_out: 190 });
        assert_eq!(sparing.passed(at(3000)), Due::default(), "nothing was left out");
        assert_eq!(lines(&mut sparing, 3000), 10);
        assert_eq!(sparing.refused(at(4000), false), Due { line: true, left_out: 90 });
    }

    #[test]
    fn failed_accept_is_said_once_a_second_whatever_else_is_said() {
        let mut sparing = Sparing::default();
        let mut said = 0;
        for ms in (0..3000).step_by(200) {
            (0..50).for_each(|_| _ = sparing.refused(Mono(ms * 1_000_000), false));
            said += u32::from(sparing.refused(Mono(ms * 1_000_000), true).line);
        }
        assert_eq!(said, 3);
    }
}
