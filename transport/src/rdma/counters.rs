//! Counters of the RDMA links of a process.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why bytes of a transfer travelled on the stream of a link that has RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamReason {
    /// The memory is in no registered region.
    Unregistered,
    /// The transfer is too short for RDMA to pay.
    Small,
    /// The memory is in too many pieces for RDMA to pay.
    Scattered,
}

/// Why a link that may have RDMA has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRdmaReason {
    /// The peer offers no RDMA.
    Peer,
    /// Every rail is suspended, or no rail of one end fits one of the other.
    Rails,
}

/// A declared list of counters: of links, which add to them, and a copy of all values.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters that all links add to.
        #[derive(Debug, Default)]
        pub struct RdmaCounters { $($(#[$doc])* pub $name: AtomicU64,)* }

        /// The values of [`RdmaCounters`].
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct RdmaCounts { $($(#[$doc])* pub $name: u64,)* }

        impl RdmaCounters {
            /// The values now.
            pub fn counts(&self) -> RdmaCounts {
                RdmaCounts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Bytes that WRITEs of this process placed in memory of peers.
    bytes_written,
    /// Bytes that READs of this process fetched from memory of peers.
    bytes_read,
    /// Bytes that peers placed in memory of this process.
    bytes_placed,
    /// Notices that were polled.
    notices,
    /// Links that have RDMA.
    links,
    /// Queue pairs that were taken down to end a peer's access to memory.
    taken_down,
    /// Queue pairs that their devices did not release, or not in time; their memory is leaked.
    leaked,
    /// Bytes on streams because their memory is not registered.
    stream_unregistered,
    /// Bytes on streams because their transfers are small.
    stream_small,
    /// Bytes on streams because their memory is scattered.
    stream_scattered,
    /// Links without RDMA because the peer offers none.
    no_rdma_peer,
    /// Links without RDMA because no rail can be used.
    no_rdma_rails,
}

impl RdmaCounters {
    /// Count bytes that travelled on the stream.
    pub fn note_stream(&self, reason: StreamReason, bytes: u64) {
        let counter = match reason {
            StreamReason::Unregistered => &self.stream_unregistered,
            StreamReason::Small => &self.stream_small,
            StreamReason::Scattered => &self.stream_scattered,
        };
        counter.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Count a link without RDMA.
    pub fn note_no_rdma(&self, reason: NoRdmaReason) {
        let counter = match reason {
            NoRdmaReason::Peer => &self.no_rdma_peer,
            NoRdmaReason::Rails => &self.no_rdma_rails,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
