//! Why a link ended, or was not made.

use pagelith_layouts::error::FormatError;
use pagelith_layouts::wire::greeting::Refusal;
use pagelith_layouts::wire::printable::Printable;
use thiserror::Error;

/// Why a link ended, or was not made. Another try may help where [`Closed::retryable`] says so.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Closed {
    /// This side closed it.
    #[error("closed by this side")]
    Here,
    /// The peer said that it closes.
    #[error("closed by the peer")]
    Bye,
    /// The connection ended without a word.
    #[error("the connection ended")]
    Ended,
    /// Nothing was heard of the peer for too long: it is dead, or the network to it.
    #[error("nothing was heard of the peer silent_ms={silent_ms}")]
    Silent {
        /// How long, in milliseconds.
        silent_ms: u64,
    },
    /// The greeting or the proof took too long.
    #[error("the handshake took too long limit_ms={limit_ms}")]
    Late {
        /// The limit in milliseconds.
        limit_ms: u64,
    },
    /// The name of the peer's host could not be resolved.
    #[error(
        "the host name was not resolved: {detail}; check the name, and the resolver of this host host={host}"
    )]
    Unresolved {
        /// The name.
        host: String,
        /// What the resolver said.
        detail: String,
    },
    /// The system failed an operation.
    #[error("{operation} failed: {} errno={errno}", std::io::Error::from_raw_os_error(*.errno))]
    System {
        /// Which operation.
        operation: &'static str,
        /// The kernel's errno.
        errno: i32,
    },
    /// The peer sent what is no frame of the protocol, or one that does not belong here.
    #[error("the peer broke the protocol: {0}")]
    Broken(FormatError),
    /// A frame's MAC or a proof does not match: the peer does not have the key, or somebody is between.
    #[error("the peer is not who it says: {what} does not match")]
    NotAuthentic {
        /// What was compared.
        what: &'static str,
    },
    /// The server does not serve this client.
    #[error("refused: {} reason={:?}", Printable(&.0.text), .0.reason)]
    Refused(Refusal),
    /// The peers have nothing in common to work with.
    #[error("the peers do not fit: {}", Printable(.0))]
    Misfit(String),
}

impl Closed {
    /// Whether the same may succeed if it is tried again later.
    pub fn retryable(&self) -> bool {
        use pagelith_layouts::wire::greeting::Reason;
        match self {
            Closed::Bye | Closed::Ended | Closed::Silent { .. } | Closed::Late { .. } => true,
            Closed::System { .. } | Closed::Unresolved { .. } => true,
            Closed::Refused(refusal) => refusal.reason == Reason::Busy || refusal.reason == Reason::Late,
            Closed::Here | Closed::Broken(_) | Closed::NotAuthentic { .. } | Closed::Misfit(_) => false,
        }
    }

    /// Whether the peer has ended it, so that it does nothing more of what it was asked. A peer that this side gave up may
    /// still do that, however late.
    pub fn is_by_peer(&self) -> bool {
        matches!(self, Closed::Bye | Closed::Ended | Closed::System { .. })
    }

    /// The peer broke the rules in a field.
    pub(crate) fn broken(field: &'static str, value: impl std::fmt::Display) -> Closed {
        Closed::Broken(FormatError::Field { structure: "frame", field, value: value.to_string() })
    }
}

impl From<FormatError> for Closed {
    fn from(error: FormatError) -> Closed {
        Closed::Broken(error)
    }
}

#[cfg(test)]
mod tests {
    use pagelith_layouts::wire::greeting::Reason;

    use super::*;

    #[test]
    fn text_of_a_server_that_is_not_known_yet_is_escaped() {
        let text = "gone\n2026 closed durable_objects=7 \u{1b}]0;title\u{7}";
        let refusal = Refusal { reason: Reason::Denied, versions: (1, 1), missing: 0, text: text.into() };
        for why in [Closed::Refused(refusal), Closed::Misfit(text.into())] {
            let shown = why.to_string();
            assert!(!shown.contains(char::is_control) && shown.contains("gone\\n2026"), "{shown}");
        }
    }

    #[test]
    fn link_that_this_side_gave_up_is_not_ended_by_the_peer() {
        assert!(Closed::Ended.is_by_peer() && Closed::Bye.is_by_peer());
        let given_up = [Closed::Silent { silent_ms: 6000 }, Closed::Here];
        assert!(!given_up.iter().any(Closed::is_by_peer));
    }
}
