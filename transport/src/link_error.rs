//! Reasons why a link ended or could not be established.

use pagelith_layouts::error::FormatError;
use pagelith_layouts::wire::greeting::Refusal;
use pagelith_layouts::wire::printable::Printable;
use rustix::io::Errno;
use thiserror::Error;

/// Why a link ended or could not be established. [`LinkError::retryable`] tells whether to try
/// again.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LinkError {
    /// This end closed the link.
    #[error("closed by this side")]
    ClosedLocally,
    /// The peer sent a goodbye.
    #[error("closed by the peer")]
    Goodbye,
    /// The connection ended without a goodbye.
    #[error("the connection ended")]
    Disconnected,
    /// The peer was silent for too long: it is dead or unreachable.
    #[error("nothing was heard of the peer silent_ms={silent_ms}")]
    PeerTimeout {
        /// Duration of the silence in milliseconds.
        silent_ms: u64,
    },
    /// The greeting or the proof took too long.
    #[error("the handshake took too long limit_ms={limit_ms}")]
    HandshakeTimeout {
        /// The limit in milliseconds.
        limit_ms: u64,
    },
    /// The host name of the peer could not be resolved.
    #[error(
        "the host name was not resolved: {detail}; check the name, and the resolver of this host host={host}"
    )]
    NameNotResolved {
        /// The name.
        host: String,
        /// The resolver's message.
        detail: String,
    },
    /// A system call failed.
    #[error("{operation} failed: {} errno={errno}", std::io::Error::from_raw_os_error(*.errno))]
    SystemCall {
        /// Which operation.
        operation: &'static str,
        /// The kernel's errno.
        errno: i32,
    },
    /// A queue pair of the link failed.
    #[error("RDMA failed: {detail} rail={rail}")]
    Rdma {
        /// Device and port.
        rail: String,
        /// The error.
        detail: String,
    },
    /// The peer did not confirm the end of a cancelled operation, so this end has revoked its
    /// access to memory by closing the link.
    #[error("a cancelled operation did not end in time limit_ms={limit_ms}")]
    Revoked {
        /// The limit in milliseconds.
        limit_ms: u64,
    },
    /// The peer sent an invalid frame, or one that is not allowed at that point.
    #[error("the peer broke the protocol: {0}")]
    ProtocolViolation(String),
    /// A proof or the MAC of a frame does not match: the peer does not have the key, or a third
    /// party changed the bytes.
    #[error("the peer failed authentication: {what} does not match")]
    AuthenticationFailed {
        /// The value that does not match.
        what: &'static str,
    },
    /// The server refused this client.
    #[error("refused: {} reason={:?}", Printable(&.0.text), .0.reason)]
    Refused(Refusal),
    /// The peers have no usable version, feature or authentication in common.
    #[error("incompatible peers: {}", Printable(.0))]
    Incompatible(String),
    /// RDMA is required, and the link cannot have it.
    #[error(
        "RDMA is required here, and the link has none: {}; start the peer with --rdma, or set the \
         transport to auto or tcp",
        Printable(reason)
    )]
    NoRdma {
        /// Why the link has none.
        reason: String,
    },
}

impl LinkError {
    /// Whether another try may succeed later.
    pub fn retryable(&self) -> bool {
        use pagelith_layouts::wire::greeting::RefusalReason;
        match self {
            LinkError::Goodbye
            | LinkError::Disconnected
            | LinkError::PeerTimeout { .. }
            | LinkError::HandshakeTimeout { .. } => true,
            LinkError::SystemCall { .. } | LinkError::NameNotResolved { .. } => true,
            LinkError::Rdma { .. } | LinkError::Revoked { .. } => true,
            LinkError::Refused(refusal) => {
                refusal.reason == RefusalReason::Busy || refusal.reason == RefusalReason::Late
            }
            LinkError::ClosedLocally
            | LinkError::ProtocolViolation(_)
            | LinkError::AuthenticationFailed { .. }
            | LinkError::Incompatible(_)
            | LinkError::NoRdma { .. } => false,
        }
    }

    /// Whether the peer ended the link, so that it executes no more requests of it. A peer that
    /// this end gave up may still execute them at any later time.
    pub fn is_by_peer(&self) -> bool {
        matches!(self, LinkError::Goodbye | LinkError::Disconnected | LinkError::SystemCall { .. })
    }

    /// A protocol violation by the value of this field.
    pub(crate) fn bad_field(field: &'static str, value: impl std::fmt::Display) -> LinkError {
        LinkError::violation(format_args!("a frame has an invalid field {field}={value}"))
    }

    /// A protocol violation, in words.
    pub(crate) fn violation(detail: impl std::fmt::Display) -> LinkError {
        LinkError::ProtocolViolation(detail.to_string())
    }
}

impl From<FormatError> for LinkError {
    fn from(error: FormatError) -> LinkError {
        LinkError::violation(error)
    }
}

/// The error of a failed system call.
pub(crate) fn system_error(operation: &'static str) -> impl Fn(Errno) -> LinkError {
    move |e| LinkError::SystemCall { operation, errno: e.raw_os_error() }
}

#[cfg(test)]
mod tests {
    use pagelith_layouts::wire::greeting::RefusalReason;

    use super::*;

    #[test]
    fn text_of_an_unauthenticated_server_is_escaped() {
        let text = "gone\n2026 closed durable_objects=7 \u{1b}]0;title\u{7}";
        let refusal = Refusal {
            reason: RefusalReason::Denied,
            versions: (1, 1),
            missing: 0,
            text: text.into(),
        };
        for why in [LinkError::Refused(refusal), LinkError::Incompatible(text.into())] {
            let shown = why.to_string();
            assert!(!shown.contains(char::is_control) && shown.contains("gone\\n2026"), "{shown}");
        }
    }

    #[test]
    fn protocol_violation_says_what_is_wrong() {
        let texts = [
            (LinkError::bad_field("rail", 7), "a frame has an invalid field rail=7"),
            (LinkError::violation("too many pings"), "too many pings"),
        ];
        for (error, detail) in texts {
            assert_eq!(error.to_string(), format!("the peer broke the protocol: {detail}"));
            assert!(!error.retryable());
        }
    }

    #[test]
    fn link_given_up_by_this_end_is_not_ended_by_the_peer() {
        assert!(LinkError::Disconnected.is_by_peer() && LinkError::Goodbye.is_by_peer());
        let given_up = [LinkError::PeerTimeout { silent_ms: 6000 }, LinkError::ClosedLocally];
        assert!(!given_up.iter().any(LinkError::is_by_peer));
    }
}
