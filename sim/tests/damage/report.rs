//! Counts of a test, printed at its end.

/// Whether nothing is to be skipped.
pub fn all() -> bool {
    std::env::var("TEST_PAGELITH_SIM_DAMAGE").is_ok_and(|v| v == "all")
}

/// Sums of a test in which nothing was wrong.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sums {
    pub injected: u64,
    /// The store reported it, or the damaged object was missed.
    pub detected: u64,
    /// Removed objects that came back, with their own bytes.
    pub returned: u64,
}

impl Sums {
    /// Prints the sums, for a row of the fault matrix.
    pub fn print(&self, row: u32, what: &str) {
        let Sums { injected, detected, returned } = self;
        let harmless = injected - detected;
        eprintln!(
            "row={row} {what}: injected={injected} detected={detected} harmless={harmless} wrong=0 \
             returned={returned}"
        );
    }
}
