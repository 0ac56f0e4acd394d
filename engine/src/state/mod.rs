//! State shared by sessions, the flusher and the server: the core with its lock, and the snapshots
//! that threads read without the lock.

pub(crate) mod busy_puts;
pub(crate) mod core;
pub(crate) mod counters;
pub(crate) mod damage;
pub(crate) mod dram_core;
pub(crate) mod event_log;
pub(crate) mod evict;
pub(crate) mod flush_counts;
pub(crate) mod frame_access;
pub(crate) mod group_info;
pub(crate) mod group_memory;
pub(crate) mod header_cache;
pub(crate) mod health;
pub(crate) mod jobs;
pub(crate) mod load_totals;
pub(crate) mod peer_offers;
pub(crate) mod peer_queue;
pub(crate) mod pending_groups;
pub(crate) mod prefetch;
pub(crate) mod put_spec;
pub(crate) mod quarantine;
pub(crate) mod read_latency;
pub(crate) mod read_view;
pub(crate) mod reads;
pub(crate) mod recency;
pub(crate) mod reserve;
pub(crate) mod scratch;
pub(crate) mod session_io;
pub(crate) mod shared;
pub(crate) mod ssd_admission;
pub(crate) mod ssd_core;
pub(crate) mod stats;
pub(crate) mod unsynced;
pub(crate) mod verify_sampler;
pub(crate) mod written_namespaces;
