//! Who asks for one thing after the other has the peer awake before it asks: a peer that has answered sleeps while this side copies, and takes as
//! long to wake up as some objects take to be copied.

/// Bytes of a get that are still to be copied when the peer is woken: what is copied in about the time that it takes to wake up, on a virtual
/// machine with slow memory and on one with quick memory.
pub(super) const EARLY_BYTES: u64 = 512 << 10;
/// Most gets between two that wake the peer early although that was in vain last time.
const PAUSE_MAX: u32 = 64;

/// Whether that pays: as long as the peer is awake still when it is asked, else now and then.
#[derive(Default)]
pub(super) struct Early {
    /// It was woken, and not asked since.
    woken: bool,
    /// Gets between two that wake it.
    pause: u32,
    /// How many of them are left.
    left: u32,
}

impl Early {
    /// Whether to wake it for what is asked next, this time: once, when it sleeps.
    pub fn is_due(&self) -> bool {
        self.left == 0 && !self.woken
    }

    /// It was woken for that, if it slept.
    pub fn woke(&mut self, slept: bool) {
        self.woken |= slept;
    }

    /// It is asked now, and slept or did not.
    pub fn asked(&mut self, slept: bool) {
        match std::mem::take(&mut self.woken) {
            true => {
                self.pause = if slept { (2 * self.pause).clamp(1, PAUSE_MAX) } else { 0 };
                self.left = self.pause;
            }
            false => self.left = self.left.saturating_sub(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_sleeps_again_before_it_is_asked_is_woken_early_ever_more_seldom() {
        let mut early = Early::default();
        let mut gets_between = Vec::new();
        for _ in 0..9 {
            let mut gets = 0;
            while !early.is_due() {
                early.asked(true);
                gets += 1;
            }
            early.woke(true);
            early.asked(true);
            gets_between.push(gets);
        }
        assert_eq!(gets_between, [0, 1, 2, 4, 8, 16, 32, 64, 64]);
        (0..64).for_each(|_| early.asked(true));
        for _ in 0..3 {
            assert!(early.is_due(), "it pays");
            early.woke(true);
            assert!(!early.is_due(), "once is enough");
            early.asked(false);
        }
        early.woke(false);
        assert!(early.is_due(), "it did not sleep then, and may when there is less left");
        early.asked(true);
        assert!(early.is_due(), "nothing was learned");
    }
}
