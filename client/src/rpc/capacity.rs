//! Limits of the requests in flight on one link.

use pagelith_transport::link::LinkCapacity;

use super::client::RpcClient;

/// Maximum bytes of requests in flight; one longer request may be in flight alone.
const IN_FLIGHT_BYTES_MAX: usize = 2 << 20;

impl RpcClient {
    /// Whether the link can take a request of this length now.
    pub fn has_capacity(&self, bytes: usize) -> bool {
        let capacity = self.capacity();
        capacity.frames > 0
            && capacity.operations > 0
            && capacity.frame_bytes >= bytes
            && self.may_send(bytes)
    }

    /// Whether a request of this length stays below the limit of requests in flight. A peer has
    /// little memory for the requests of one client, and answers `Busy` beyond it.
    pub(crate) fn may_send(&self, bytes: usize) -> bool {
        let in_flight: usize = self.calls.values().map(|call| call.request_bytes).sum();
        in_flight == 0 || in_flight + bytes <= IN_FLIGHT_BYTES_MAX
    }

    /// Free capacity of the link.
    pub fn capacity(&self) -> LinkCapacity {
        self.link.capacity()
    }
}
