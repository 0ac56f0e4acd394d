//! Time for the store: monotonic, injected, never wall-clock time.

use std::time::Duration;

/// Nanoseconds since a fixed moment of this process or simulation; comparable only within one
/// clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mono(pub u64);

impl Mono {
    /// The moment `d` later; saturates.
    pub fn after(self, d: Duration) -> Mono {
        Mono(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Time from `earlier` to `self`, zero if `earlier` is later.
    pub fn since(self, earlier: Mono) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A source of monotonic time.
pub trait Clock: Send + Sync {
    /// Now.
    fn now(&self) -> Mono;
}
