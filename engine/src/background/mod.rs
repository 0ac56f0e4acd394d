//! Work without a caller: flush, reclaim, checkpoints, recovery, scrub.

pub(crate) mod checkpoint;
pub(crate) mod device_probe;
pub(crate) mod flusher;
pub(crate) mod generations;
pub(crate) mod job_writer;
pub(crate) mod log_context;
pub(crate) mod log_op;
pub(crate) mod peer_removals;
pub(crate) mod peer_writer;
pub(crate) mod pending_flushes;
pub(crate) mod pending_records;
pub(crate) mod purge;
pub(crate) mod reclaim;
pub(crate) mod recovery;
pub(crate) mod scrub;
pub(crate) mod stall_detector;
pub(crate) mod tombstone_readback;
