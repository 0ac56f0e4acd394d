//! Delays of one-sided transfers, and their counters.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Delays of one-sided transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaFaults {
    /// Longest time between a piece's leaving the server and its landing.
    pub landing_max: Duration,
    /// Pieces of a million that land up to half a second later.
    pub stall: u32,
    /// Pieces of a million in which one bit is flipped.
    pub flip: u32,
    /// Longest time that the client's queue pair takes to go down.
    pub take_down_max: Duration,
}

impl Default for RdmaFaults {
    fn default() -> RdmaFaults {
        let (landing_max, take_down_max) = (Duration::from_micros(50), Duration::from_millis(2));
        RdmaFaults { landing_max, stall: 0, flip: 0, take_down_max }
    }
}

/// Counters of one-sided transfers and of violations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FabricStats {
    /// Ranges that the server wrote to memory of the client.
    pub placed: u64,
    /// Ranges that the server read from memory of the client.
    pub fetched: u64,
    /// Notices that arrived.
    pub notices: u64,
    /// Client queue pairs that were taken down while memory was exposed.
    pub forced: u64,
    /// Pieces that landed after their completion at the server, or after its flush or crash.
    pub landed_late: u64,
    /// Pieces that were in transit when the client's queue pair went down.
    pub stopped: u64,
    /// Pieces with a flipped bit.
    pub flipped: u64,
    /// Notices without a posted receive, until the device gave up. A violation.
    pub unreceived: u64,
    /// Ranges of the client that were never handed back. A violation.
    pub leaked: u64,
    /// Pieces that landed in memory that the client had not exposed, or had handed back. A
    /// violation.
    pub strayed: u64,
    /// Accesses outside of registered memory. A violation.
    pub outside: u64,
    /// WRITEs whose memory changed before their completion. A violation.
    pub changed: u64,
}

impl FabricStats {
    /// The sum of both.
    #[must_use]
    pub fn and(self, other: FabricStats) -> FabricStats {
        FabricStats {
            placed: self.placed + other.placed,
            fetched: self.fetched + other.fetched,
            notices: self.notices + other.notices,
            forced: self.forced + other.forced,
            landed_late: self.landed_late + other.landed_late,
            stopped: self.stopped + other.stopped,
            flipped: self.flipped + other.flipped,
            unreceived: self.unreceived + other.unreceived,
            leaked: self.leaked + other.leaked,
            strayed: self.strayed + other.strayed,
            outside: self.outside + other.outside,
            changed: self.changed + other.changed,
        }
    }

    /// The number of violations.
    pub fn violations(&self) -> u64 {
        self.unreceived + self.leaked + self.strayed + self.outside + self.changed
    }
}
