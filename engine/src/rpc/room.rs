//! Whether a peer may be asked for more.

use super::client::Caller;

/// Bytes of requests that wait for their outcomes, unless one alone has more.
const ASKED_BYTES_MAX: usize = 2 << 20;

impl Caller {
    /// Whether there is room for a request of so many bytes now.
    pub fn has_room(&self, bytes: usize) -> bool {
        let room = self.link.room();
        room.frames > 0 && room.operations > 0 && room.frame_bytes >= bytes && self.may_ask(bytes)
    }

    /// Whether the peer may be asked for more in so many bytes before it has answered some of what it was asked: it has little room for
    /// what a client asks at once, and says that it is busy beyond that.
    pub(crate) fn may_ask(&self, bytes: usize) -> bool {
        let asked: usize = self.calls.values().map(|call| call.asked).sum();
        asked == 0 || asked + bytes <= ASKED_BYTES_MAX
    }

    /// How much more the link takes now.
    #[cfg(test)]
    pub fn room(&self) -> pagelith_transport::link::Room {
        self.link.room()
    }
}
