//! The wire protocol: frames between a client and a store process. Both directions are driven by the server. A
//! client sends control frames, and bulk bytes only where a [`pull`] asked for them; the server sends bulk bytes
//! only for a get in flight. Nobody names an address: where bytes lie in memory that was
//! handed over on the connection, it is a place in that memory ([`shown`]).
//!
//! Every frame is a [`FrameHead`] and a body. The body of a data frame is an object's bytes, which go where the
//! reader exposed memory for them; every other body is control: capped, checksummed, and read by the decoder of
//! its kind. Decoders are pure, allocate nothing that a length in the frame decides, and read the whole body or
//! refuse it by name.

pub mod auth;
pub mod greeting;
pub mod head;
pub mod outcome;
pub mod printable;
pub mod pull;
pub mod put;
pub mod request;
pub mod shown;

mod list;

use crate::format::Structure;
use crate::ids::OpId;

pub use head::{FrameHead, HeadFacts};
pub use list::List;

/// Oldest protocol version that this build speaks.
pub const VERSION_MIN: u16 = 1;
/// Newest protocol version that this build speaks.
pub const VERSION_MAX: u16 = 1;
/// Version in the heads of frames that come before a version is agreed. The layout of those frames never changes.
pub const VERSION_GREETING: u16 = 1;

/// Longest body in bytes of a frame that comes before a peer is known: greetings, refusals, challenge and proof.
pub const GREETING_BODY_MAX: u32 = 1024;
/// Least that either side may state as its longest control body in bytes.
pub const CONTROL_BODY_LEAST: u32 = 16 << 10;
/// Longest control body in bytes that a reader accepts whatever was agreed.
pub const CONTROL_BODY_MAX: u32 = 16 << 20;
/// Least that either side may state as its longest data body in bytes.
pub const DATA_BODY_LEAST: u32 = 64 << 10;
/// Longest data body in bytes that a reader accepts whatever was agreed.
pub const DATA_BODY_MAX: u32 = 128 << 20;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A client's first frame: what it is and can do.
    Hello = 1,
    /// The server's answer: what it is and can do.
    Welcome = 2,
    /// The server's last frame to a peer it does not serve, and why.
    Refusal = 3,
    /// The server's nonce.
    Challenge = 4,
    /// Proof that the sender has the key; the client's comes first.
    Proof = 5,
    /// What a client asks for.
    Request = 6,
    /// The server asks for bytes of a put.
    Pull = 7,
    /// An object's bytes.
    Data = 8,
    /// The last frame of an operation: what became of it.
    Outcome = 9,
    /// The client no longer waits for an operation.
    Cancel = 10,
    /// Is anybody there.
    Ping = 11,
    /// The answer to a ping, with its operation id.
    Pong = 12,
    /// The sender is about to close.
    Bye = 13,
    /// Where an object's bytes lie in memory that the sender has handed over.
    Shown = 14,
    /// The sender no longer looks at what it was shown.
    Taken = 15,
}

/// Which end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The one that asks.
    Client,
    /// The store.
    Server,
}

impl Side {
    /// The other end.
    pub fn other(self) -> Side {
        match self {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        }
    }
}

impl Kind {
    /// All kinds, for tables.
    pub const ALL: [Kind; 15] = [
        Kind::Hello,
        Kind::Welcome,
        Kind::Refusal,
        Kind::Challenge,
        Kind::Proof,
        Kind::Request,
        Kind::Pull,
        Kind::Data,
        Kind::Outcome,
        Kind::Cancel,
        Kind::Ping,
        Kind::Pong,
        Kind::Bye,
        Kind::Shown,
        Kind::Taken,
    ];

    /// The kind of a tag; 0 is none.
    pub fn of(tag: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == tag)
    }

    /// Whether it comes before the peers know each other: its body is at most [`GREETING_BODY_MAX`] bytes.
    pub fn is_greeting(self) -> bool {
        match self {
            Kind::Hello | Kind::Welcome | Kind::Refusal | Kind::Challenge | Kind::Proof => true,
            Kind::Request | Kind::Pull | Kind::Data | Kind::Outcome | Kind::Shown | Kind::Taken => false,
            Kind::Cancel | Kind::Ping | Kind::Pong | Kind::Bye => false,
        }
    }

    /// Whether `side` may send it.
    pub fn is_sent_by(self, side: Side) -> bool {
        match self {
            Kind::Hello | Kind::Request | Kind::Cancel => side == Side::Client,
            Kind::Welcome | Kind::Refusal | Kind::Challenge | Kind::Pull | Kind::Outcome => {
                side == Side::Server
            }
            Kind::Proof | Kind::Data | Kind::Ping | Kind::Pong | Kind::Bye => true,
            Kind::Shown | Kind::Taken => true,
        }
    }

    /// Whether it has no body.
    pub fn is_bare(self) -> bool {
        match self {
            Kind::Cancel | Kind::Ping | Kind::Pong | Kind::Bye => true,
            Kind::Hello | Kind::Welcome | Kind::Refusal | Kind::Challenge | Kind::Proof => false,
            Kind::Request | Kind::Pull | Kind::Data | Kind::Outcome | Kind::Shown | Kind::Taken => false,
        }
    }
}

/// A control frame: every kind but data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is.
    pub kind: Kind,
    /// Which operation it is of; 0 where there is none.
    pub op: OpId,
    /// Its body, as the encoder of its kind wrote it.
    pub body: Vec<u8>,
}

impl Frame {
    /// A frame with a body.
    pub fn new(kind: Kind, op: OpId, body: Vec<u8>) -> Frame {
        Frame { kind, op, body }
    }

    /// A frame without a body.
    pub fn bare(kind: Kind, op: OpId) -> Frame {
        Frame { kind, op, body: Vec::new() }
    }
}

/// Every structure of the protocol, in the order of `docs/protocol.md`.
pub const STRUCTURES: &[Structure] = &[
    FrameHead::STRUCTURE,
    greeting::Greeting::STRUCTURE,
    greeting::RefusalHead::STRUCTURE,
    auth::ChallengeBody::STRUCTURE,
    auth::ProofBody::STRUCTURE,
    request::RequestHead::STRUCTURE,
    request::GetItem::STRUCTURE,
    put::PutItem::STRUCTURE,
    pull::PullItem::STRUCTURE,
    shown::ShownHead::STRUCTURE,
    shown::ShownPiece::STRUCTURE,
    shown::TakenItem::STRUCTURE,
    outcome::OutcomeHead::STRUCTURE,
    outcome::OutcomeItem::STRUCTURE,
    outcome::Flushed::STRUCTURE,
    outcome::EventItem::STRUCTURE,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_tag_of_its_own_and_zero_is_none() {
        assert_eq!(Kind::of(0), None);
        assert_eq!(Kind::of(16), None);
        for kind in Kind::ALL {
            assert_eq!(Kind::of(kind as u8), Some(kind));
            assert!(kind.is_sent_by(Side::Client) || kind.is_sent_by(Side::Server), "{kind:?}");
            assert!(!(kind.is_bare() && kind.is_greeting()), "{kind:?}");
        }
    }

    #[test]
    fn fields_follow_one_another_without_gaps() {
        for s in STRUCTURES {
            let mut at = 0;
            for f in s.fields {
                assert_eq!(f.offset, at, "{}.{}", s.name, f.name);
                assert!(f.doc.starts_with(' ') && f.doc.ends_with('.'), "{}.{}: {}", s.name, f.name, f.doc);
                at += f.size;
            }
            assert_eq!(at, s.size, "{}", s.name);
        }
    }
}
