//! The RDMA data plane of one link.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_layouts::ids::OpId;

use super::client_plane::ClientPlane;
use super::rails::Rails;
use super::server_plane::{ReadDone, ServerPlane};
use super::take_down::TakeDown;

/// The data plane, by the role of this end.
pub(crate) enum DataPlane {
    Client(ClientPlane),
    Server(ServerPlane),
}

impl DataPlane {
    /// The client's end.
    pub fn client(&mut self) -> Option<&mut ClientPlane> {
        match self {
            DataPlane::Client(client) => Some(client),
            DataPlane::Server(_) => None,
        }
    }

    /// The server's end.
    pub fn server(&mut self) -> Option<&mut ServerPlane> {
        match self {
            DataPlane::Client(_) => None,
            DataPlane::Server(server) => Some(server),
        }
    }

    fn rails(&self) -> &Rails {
        match self {
            DataPlane::Client(client) => &client.rails,
            DataPlane::Server(server) => &server.rails,
        }
    }

    /// Whether a device may access memory for an operation.
    pub fn is_live(&self, op: OpId) -> bool {
        match self {
            DataPlane::Client(client) => client.is_live(op),
            DataPlane::Server(server) => server.is_live(op),
        }
    }

    /// Whether a device may access memory of the link.
    pub fn is_any_live(&self) -> bool {
        match self {
            DataPlane::Client(client) => client.is_any_live(),
            DataPlane::Server(server) => server.rails.is_busy(),
        }
    }

    fn rails_mut(&mut self) -> &mut Rails {
        match self {
            DataPlane::Client(client) => &mut client.rails,
            DataPlane::Server(server) => &mut server.rails,
        }
    }

    /// Retract the memory of an operation: nothing more is posted for it. Returns the READs that
    /// have ended by that.
    pub fn retract(&mut self, op: OpId) -> Vec<ReadDone> {
        match self {
            DataPlane::Client(client) => {
                client.retract(op);
                Vec::new()
            }
            DataPlane::Server(server) => server.retract(op),
        }
    }

    /// Note that memory of a cancelled operation waits for devices.
    pub fn note_retracted(&mut self, op: OpId, now: Mono) {
        self.rails_mut().note_retracted(op, now);
    }

    /// Note that the byte stream has ended, while bytes are awaited.
    pub fn note_stream_ended(&mut self, now: Mono) {
        self.rails_mut().note_stream_ended(now);
    }

    /// Whether the byte stream has ended, while bytes were awaited.
    pub fn has_stream_ended(&self) -> bool {
        self.rails().has_stream_ended()
    }

    /// Time until the oldest cancelled operation, or the last bytes of an ended stream, have been
    /// awaited for `most`; `None` if there are none.
    pub fn retract_due(&self, now: Mono, most: Duration) -> Option<Duration> {
        self.rails().retract_due(now, most)
    }

    /// Make the next completion wake one of [`DataPlane::wakes`]. True if there is one already.
    pub fn arm(&self) -> bool {
        self.rails().arm()
    }

    /// Descriptors that are readable when a completion has arrived since [`DataPlane::arm`].
    pub fn wakes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rails().wakes()
    }

    /// Take the queue pairs down.
    pub fn take_down(self) -> TakeDown {
        let revokes = self.is_any_live();
        match self {
            DataPlane::Client(client) => client.rails.take_down(revokes),
            DataPlane::Server(server) => server.rails.take_down(revokes),
        }
    }
}
