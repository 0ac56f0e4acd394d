//! How rings are set up, in the kernel's terms (io_uring_setup(2)); what each is worth: docs/decisions/0042.

use std::fmt;
use std::time::Duration;

/// Who hands a ring's entries to the kernel, and when its completions are posted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RingKind {
    /// Whichever thread enters the ring; `COOP_TASKRUN` where the kernel has it (5.19).
    #[default]
    Plain,
    /// One thread, which posts its completions when it enters: `SINGLE_ISSUER` and `DEFER_TASKRUN`, of Linux 6.1.
    Deferred,
    /// A thread of the kernel's, one for all rings of a disk: `SQPOLL`.
    Sqpoll,
}

/// How the rings of a disk are set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSetup {
    /// Of all rings.
    pub kind: RingKind,
    /// How long the kernel's thread of `Sqpoll` looks for entries before it sleeps; whole milliseconds.
    pub sqpoll_idle: Duration,
}

impl RingSetup {
    /// The same rings that ask nothing of the kernel or the device.
    pub const PLAIN: RingSetup = RingSetup { kind: RingKind::Plain, sqpoll_idle: Duration::from_millis(10) };

    /// Whether it asks for nothing that a kernel or device may refuse where it has io_uring.
    pub fn is_plain(&self) -> bool {
        self.kind == RingKind::Plain
    }
}

impl Default for RingSetup {
    fn default() -> RingSetup {
        RingSetup::PLAIN
    }
}

impl fmt::Display for RingSetup {
    /// As settings name it: `plain`, `deferred`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            RingKind::Plain => "plain",
            RingKind::Deferred => "deferred",
            RingKind::Sqpoll => "sqpoll",
        })
    }
}
