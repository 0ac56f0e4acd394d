//! Whether a thread with work of its own runs on the core of a side that looks: as long as the core is kept from it, nothing that it is to do is done, be
//! it what is waited for or what comes behind that.

use std::time::Duration;

/// A call that gives the core away takes so long only if another thread ran meanwhile.
const ANOTHER_RAN: Duration = Duration::from_micros(2);
/// One that ran so long did not let go of the core by itself: a side of a link does, which answers and looks for more.
const KEPT_ON: Duration = Duration::from_micros(500);
/// So many waits that give the core away at once lie between two that keep it at first: what comes as soon as that needs no more.
const BETWEEN: u32 = 15;

/// What the waits of one side have shown.
#[derive(Default)]
pub(super) struct SharedCore {
    is_shared: bool,
    /// Waits before the next that keeps the core at first.
    left: u32,
}

impl SharedCore {
    /// Whether to give the core away at once, this time.
    pub fn gives_way(&mut self) -> bool {
        match (self.is_shared, self.left.checked_sub(1)) {
            (false, _) => false,
            (true, Some(left)) => {
                self.left = left;
                true
            }
            (true, None) => {
                self.left = BETWEEN;
                false
            }
        }
    }

    /// Whether another thread ran while a call that gave the core away took so long.
    pub fn another_ran(took: Duration) -> bool {
        took >= ANOTHER_RAN
    }

    /// What was waited for is here: since a call that gave the core away and took so long, or since this side looked.
    pub fn came(&mut self, gave: Option<Duration>) {
        let is_shared = gave.is_some_and(|took| SharedCore::another_ran(took) && took < KEPT_ON);
        if is_shared && !self.is_shared {
            self.left = BETWEEN;
        }
        self.is_shared = is_shared;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAN: Option<Duration> = Some(Duration::from_micros(90));

    #[test]
    fn a_core_is_given_away_at_once_where_what_is_waited_for_came_with_that() {
        let mut core = SharedCore::default();
        assert!(!core.gives_way());
        core.came(RAN);
        assert!((0..BETWEEN).all(|_| core.gives_way()));
        for others in [None, Some(Duration::from_nanos(300)), Some(Duration::from_millis(3))] {
            core.came(RAN);
            core.came(others);
            assert!(!core.gives_way(), "{others:?}: nobody was there, or somebody who does not answer");
        }
    }

    #[test]
    fn a_core_is_kept_now_and_then_lest_what_comes_soon_is_waited_for_long() {
        let mut core = SharedCore::default();
        core.came(RAN);
        let mut kept = Vec::new();
        for at in 0..40 {
            if !core.gives_way() {
                kept.push(at);
            }
            core.came(RAN);
        }
        assert_eq!(kept, [15, 31]);
        core.came(None);
        assert!(!core.gives_way(), "it was there at once");
    }
}
