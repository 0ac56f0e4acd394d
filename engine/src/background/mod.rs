//! Work without a caller: flush, reclaim, checkpoints, recovery, scrub.

pub(crate) mod checkpoint;
pub(crate) mod damage_flush;
pub(crate) mod flusher;
pub(crate) mod log_events;
pub(crate) mod peer_removals;
pub(crate) mod peer_writer;
pub(crate) mod probe;
pub(crate) mod quarantine;
pub(crate) mod readback;
pub(crate) mod reclaim;
pub(crate) mod recovery;
pub(crate) mod scrub;
pub(crate) mod stall;
