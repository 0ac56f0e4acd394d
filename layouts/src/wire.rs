//! The wire protocol: frames between a client and a store process.
//!
//! The server drives transfers in both directions. A client sends control frames, and sends object
//! bytes only if a [`pull`] requested them. The server sends object bytes only for a get in flight.
//! Bytes in shared memory are named by a region, which was passed over the connection, and an
//! offset ([`shm_ref`]). Memory addresses are only in the frames by which a client names memory for
//! RDMA ([`rdma_regions`]); the store's own addresses never leave it.
//!
//! A frame is a [`FrameHead`] and a body. The body of a data frame is object bytes, which are read
//! into the memory that the reader provided for them. Every other body is a control body: its
//! length is capped, it has a checksum, and the decoder of its kind reads it. Decoders are pure
//! functions. They never allocate by a length in the frame, and they either decode the whole body
//! or return an error that names the field.

pub mod auth;
pub mod greeting;
pub mod head;
pub mod hint;
pub mod outcome;
pub mod placement;
pub mod printable;
pub mod pull;
pub mod put;
pub mod rails;
pub mod rdma_regions;
pub mod request;
pub mod shm_ref;

mod list;

use crate::ids::OpId;

pub use head::{FrameHead, HeadFacts};
pub use list::List;

/// Oldest protocol version that this build speaks.
pub const VERSION_MIN: u16 = 1;
/// Newest protocol version that this build speaks.
pub const VERSION_MAX: u16 = 1;
/// Version in the headers of frames that precede version negotiation. The layout of those frames
/// never changes.
pub const VERSION_GREETING: u16 = 1;

/// Longest body in bytes of a frame that precedes authentication: greetings, refusals, challenge
/// and proof.
pub const GREETING_BODY_MAX: u32 = 1024;
/// Smallest valid `control_bytes_max` of a greeting.
pub const CONTROL_BODY_LEAST: u32 = 16 << 10;
/// Longest control body in bytes that a reader accepts, regardless of the negotiated limit.
pub const CONTROL_BODY_MAX: u32 = 16 << 20;
/// Smallest valid `data_bytes_max` of a greeting.
pub const DATA_BODY_LEAST: u32 = 64 << 10;
/// Longest data body in bytes that a reader accepts, regardless of the negotiated limit.
pub const DATA_BODY_MAX: u32 = 128 << 20;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameKind {
    /// First frame of a client: its capabilities.
    Hello = 1,
    /// The server's reply: its capabilities.
    Welcome = 2,
    /// Last frame of a server to a client that it does not serve, with the reason.
    Refusal = 3,
    /// The server's nonce.
    Challenge = 4,
    /// Proof that the sender has the key; the client sends its proof first.
    Proof = 5,
    /// A client's request.
    Request = 6,
    /// The server requests bytes of a put.
    Pull = 7,
    /// Object bytes.
    Data = 8,
    /// Last frame of an operation: its result.
    Outcome = 9,
    /// The client no longer waits for an operation.
    Cancel = 10,
    /// Liveness probe.
    Ping = 11,
    /// Reply to a ping, with its operation id.
    Pong = 12,
    /// The sender is about to close the connection.
    Bye = 13,
    /// Location of an object's bytes in memory that the sender shares.
    Shown = 14,
    /// The sender no longer reads bytes that were passed to it by reference.
    Taken = 15,
    /// The sender's queue pairs for RDMA, or why it has none.
    Rails = 16,
    /// Memory of the client that the server may access by RDMA.
    Regions = 17,
    /// Where the client wants the bytes of an operation.
    Targets = 18,
    /// Bytes that the server wrote there, in place of a data frame.
    Placed = 19,
    /// Notices that the client has polled.
    Noticed = 20,
}

/// End of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkRole {
    /// The end that sends requests.
    Client,
    /// The store.
    Server,
}

impl LinkRole {
    /// The other end.
    pub fn other(self) -> LinkRole {
        match self {
            LinkRole::Client => LinkRole::Server,
            LinkRole::Server => LinkRole::Client,
        }
    }
}

impl FrameKind {
    /// All kinds.
    pub const ALL: [FrameKind; 20] = [
        FrameKind::Hello,
        FrameKind::Welcome,
        FrameKind::Refusal,
        FrameKind::Challenge,
        FrameKind::Proof,
        FrameKind::Request,
        FrameKind::Pull,
        FrameKind::Data,
        FrameKind::Outcome,
        FrameKind::Cancel,
        FrameKind::Ping,
        FrameKind::Pong,
        FrameKind::Bye,
        FrameKind::Shown,
        FrameKind::Taken,
        FrameKind::Rails,
        FrameKind::Regions,
        FrameKind::Targets,
        FrameKind::Placed,
        FrameKind::Noticed,
    ];

    /// The kind with this tag; no kind has tag 0.
    pub fn from_tag(tag: u8) -> Option<FrameKind> {
        FrameKind::ALL.into_iter().find(|kind| *kind as u8 == tag)
    }

    /// Whether the frame precedes authentication; its body then has at most [`GREETING_BODY_MAX`]
    /// bytes.
    pub fn is_greeting(self) -> bool {
        match self {
            FrameKind::Hello
            | FrameKind::Welcome
            | FrameKind::Refusal
            | FrameKind::Challenge
            | FrameKind::Proof => true,
            FrameKind::Request
            | FrameKind::Pull
            | FrameKind::Data
            | FrameKind::Outcome
            | FrameKind::Shown
            | FrameKind::Taken => false,
            FrameKind::Cancel | FrameKind::Ping | FrameKind::Pong | FrameKind::Bye => false,
            FrameKind::Rails
            | FrameKind::Regions
            | FrameKind::Targets
            | FrameKind::Placed
            | FrameKind::Noticed => false,
        }
    }

    /// Whether `side` may send it.
    pub fn is_sent_by(self, side: LinkRole) -> bool {
        match self {
            FrameKind::Hello | FrameKind::Request | FrameKind::Cancel => side == LinkRole::Client,
            FrameKind::Welcome
            | FrameKind::Refusal
            | FrameKind::Challenge
            | FrameKind::Pull
            | FrameKind::Outcome => side == LinkRole::Server,
            FrameKind::Proof
            | FrameKind::Data
            | FrameKind::Ping
            | FrameKind::Pong
            | FrameKind::Bye => true,
            FrameKind::Shown | FrameKind::Taken | FrameKind::Rails => true,
            FrameKind::Regions | FrameKind::Targets | FrameKind::Noticed => {
                side == LinkRole::Client
            }
            FrameKind::Placed => side == LinkRole::Server,
        }
    }

    /// Whether the frame has no body.
    pub fn is_bare(self) -> bool {
        match self {
            FrameKind::Cancel | FrameKind::Ping | FrameKind::Pong | FrameKind::Bye => true,
            FrameKind::Hello
            | FrameKind::Welcome
            | FrameKind::Refusal
            | FrameKind::Challenge
            | FrameKind::Proof => false,
            FrameKind::Request
            | FrameKind::Pull
            | FrameKind::Data
            | FrameKind::Outcome
            | FrameKind::Shown
            | FrameKind::Taken => false,
            FrameKind::Rails
            | FrameKind::Regions
            | FrameKind::Targets
            | FrameKind::Placed
            | FrameKind::Noticed => false,
        }
    }
}

/// A control frame: any kind except data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Kind.
    pub kind: FrameKind,
    /// Operation; 0 if none.
    pub op: OpId,
    /// Body, written by the encoder of its kind.
    pub body: Vec<u8>,
}

impl Frame {
    /// A frame with a body.
    pub fn new(kind: FrameKind, op: OpId, body: Vec<u8>) -> Frame {
        Frame { kind, op, body }
    }

    /// A frame without a body.
    pub fn bare(kind: FrameKind, op: OpId) -> Frame {
        Frame { kind, op, body: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_frame_kind_has_unique_nonzero_tag() {
        assert_eq!(FrameKind::from_tag(0), None);
        assert_eq!(FrameKind::from_tag(21), None);
        for kind in FrameKind::ALL {
            assert_eq!(FrameKind::from_tag(kind as u8), Some(kind));
            assert!(
                kind.is_sent_by(LinkRole::Client) || kind.is_sent_by(LinkRole::Server),
                "{kind:?}"
            );
            assert!(!(kind.is_bare() && kind.is_greeting()), "{kind:?}");
        }
    }
}
