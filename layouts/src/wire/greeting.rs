//! Greetings: the first frame of each side, with its protocol versions, limits and features; and
//! the refusal of a peer that is not served. Both sides compute the negotiated values from the two
//! greetings, without further frames.

use crate::error::FormatError;
use crate::format::{is_zero, read, structure};
use crate::wire::{CONTROL_BODY_LEAST, DATA_BODY_LEAST, GREETING_BODY_MAX};

structure! {
    /// Body of a hello and of a welcome. Later versions may append fields: a reader ignores the
    /// bytes that it does not know. The proof covers them too.
    pub struct Greeting = 64 {
        /// Oldest protocol version of the sender, at least 1.
        pub version_min: u16,
        /// Newest protocol version of the sender.
        pub version_max: u16,
        /// Authentication. Bit 0: by the connection itself (Unix credentials, or any process of
        /// this host), bit 1: by a pre-shared key. In a hello, the methods that the client
        /// supports; in a welcome, the one that the server requires.
        pub auth: u8,
        /// Payload checksums that the sender computes and verifies. Bit 0: XXH3-128.
        pub checksums: u8,
        /// Zero.
        pub reserved: u16,
        /// Alignment of memory into which the sender can receive without a copy, a power of two.
        pub alignment: u32,
        /// Longest control body that the sender reads.
        pub control_bytes_max: u32,
        /// Longest data body that the sender reads.
        pub data_bytes_max: u32,
        /// Most operations in flight, at least 1.
        pub operations_max: u32,
        /// Longest object that the sender can hold, at least 1.
        pub object_bytes_max: u64,
        /// One bit each; a reader ignores bits that it does not know.
        pub features: u64,
        /// Random identifier of the sender's process.
        pub instance: [u8; 16],
        /// Zero.
        pub reserved_too: [u8; 8],
    }
}

structure! {
    /// Optional in a hello, after the greeting: the name of the client's host, for the server's
    /// log. The text follows: letters, digits, dots, hyphens and underscores; another text is
    /// ignored.
    pub struct HostNameHead = 8 {
        /// Length of the text, 1 to 253.
        host_bytes: u16,
        /// Zero.
        reserved: [u8; 6],
    }
}

structure! {
    /// Start of a refusal's body; a text of at most 512 bytes follows.
    pub struct RefusalHead = 16 {
        /// 1 no common version, 2 a feature is missing, 3 authentication or authorization failed, 4
        /// too many connections, 5 the first frame was not a greeting, 6 the greeting took too
        /// long.
        reason: u8,
        /// Zero.
        reserved: u8,
        /// Oldest protocol version of the server.
        version_min: u16,
        /// Newest protocol version of the server.
        version_max: u16,
        /// Length of the text.
        text_bytes: u16,
        /// Missing features, one bit each.
        missing: u64,
    }
}

/// The connection itself authenticates the peer.
pub const AUTH_CONNECTION: u8 = 1;
/// A pre-shared key authenticates the peer.
pub const AUTH_KEY: u8 = 2;
/// Payload checksums are XXH3-128.
pub const CHECKSUM_XXH3_128: u8 = 1;
/// Longest text of a refusal in bytes.
pub const REFUSAL_TEXT_MAX: usize = 512;
/// Longest name of a host in bytes, as in DNS.
const HOST_NAME_MAX: usize = 253;

/// Optional features of a peer. Bits 20 and 21 are reserved: by them earlier builds mean a
/// client's word for its memory in place of checksums, and a catalog of memory that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u64)]
pub enum Feature {
    /// Gets of a range of an object.
    Ranges = 1,
    /// Groups of several objects that become visible together.
    Groups = 1 << 1,
    /// Objects attached to a group.
    Attached = 1 << 2,
    /// Puts survive a restart after a flush.
    Durable = 1 << 3,
    /// Pools of any name instead of a fixed set.
    AnyPool = 1 << 4,
    /// Puts without checksums: the store computes them from the received bytes.
    ServerChecksums = 1 << 5,
    /// The link runs over shared memory, set up over a socket of the same host.
    SharedMemory = 1 << 6,
    /// Groups that are put in several requests.
    Parts = 1 << 7,
    /// Bytes passed by reference, in memory that was passed over a socket of the same host.
    Shown = 1 << 8,
    /// Pins and leases, which the store holds for a connection.
    Pins = 1 << 9,
    /// Open groups: begun in one request, put into and committed by others.
    Begun = 1 << 10,
    /// Events about objects that are stored and removed.
    Events = 1 << 11,
    /// Prefetch of objects into memory.
    Prefetch = 1 << 12,
    /// Views: clients read objects in shared memory, which stay there until the client releases
    /// them.
    Views = 1 << 13,
    /// A hit states the number of objects that were put together with it.
    Members = 1 << 14,
    /// A client that receives bytes with a wrong checksum repeats the get, so that the store
    /// verifies its own copy.
    AsksAgain = 1 << 15,
    /// Reserved: hits from SSD that a client reads itself, out of files that were handed over on
    /// the socket of one host.
    Files = 1 << 16,
    /// A request may state that its sender is a store that has this one as a peer.
    Peers = 1 << 17,
    /// Stores exchange attached objects: a hit names the base group, and a put of attached objects
    /// whose base is absent is refused and does not wait.
    Bases = 1 << 18,
    /// While a store announces a removal to its peers, the peers store no objects received from
    /// other stores.
    Holds = 1 << 19,
    /// Bulk bytes travel by RDMA, between queue pairs that both ends agree on after the handshake.
    /// Only an end with a device offers it.
    Rdma = 1 << 22,
    /// Hints about the future use of objects.
    Hints = 1 << 23,
    /// A get may state how fast its sender recomputes tokens.
    PrefillRate = 1 << 24,
}

impl Feature {
    /// Features of earlier builds: no build offers them any more, and their bits are not used for
    /// anything else.
    const RESERVED: [Feature; 1] = [Feature::Files];

    /// All features, by bit.
    pub const ALL: [Feature; 23] = [
        Feature::Ranges,
        Feature::Groups,
        Feature::Attached,
        Feature::Durable,
        Feature::AnyPool,
        Feature::ServerChecksums,
        Feature::SharedMemory,
        Feature::Parts,
        Feature::Shown,
        Feature::Pins,
        Feature::Begun,
        Feature::Events,
        Feature::Prefetch,
        Feature::Views,
        Feature::Members,
        Feature::AsksAgain,
        Feature::Files,
        Feature::Peers,
        Feature::Bases,
        Feature::Holds,
        Feature::Rdma,
        Feature::Hints,
        Feature::PrefillRate,
    ];

    /// The bits of the features that every process of this build has: all except RDMA, which needs
    /// a device.
    pub fn of_this_build() -> u64 {
        let has =
            |feature: &Feature| !Feature::RESERVED.contains(feature) && *feature != Feature::Rdma;
        Feature::ALL.into_iter().filter(has).fold(0, |bits, feature| bits | feature.bit())
    }

    /// Its bit.
    pub const fn bit(self) -> u64 {
        self as u64
    }

    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Feature::Ranges => "ranges",
            Feature::Groups => "groups",
            Feature::Attached => "attached",
            Feature::Durable => "durable",
            Feature::AnyPool => "any_pool",
            Feature::ServerChecksums => "server_checksums",
            Feature::SharedMemory => "shared_memory",
            Feature::Parts => "parts",
            Feature::Shown => "shown",
            Feature::Pins => "pins",
            Feature::Begun => "begun",
            Feature::Events => "events",
            Feature::Prefetch => "prefetch",
            Feature::Views => "views",
            Feature::Members => "members",
            Feature::AsksAgain => "asks_again",
            Feature::Files => "files",
            Feature::Peers => "peers",
            Feature::Bases => "bases",
            Feature::Holds => "holds",
            Feature::Rdma => "rdma",
            Feature::Hints => "hints",
            Feature::PrefillRate => "prefill_rate",
        }
    }

    /// The names of the bits in `features`, in bit order; bits that this build does not know are
    /// omitted.
    pub fn names(features: u64) -> Vec<&'static str> {
        Feature::ALL.into_iter().filter(|f| features & f.bit() != 0).map(Feature::name).collect()
    }
}

/// Reason why a peer is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RefusalReason {
    /// There is no common protocol version.
    Version = 1,
    /// One side lacks a feature that the other requires.
    Feature = 2,
    /// Authentication or authorization failed.
    Denied = 3,
    /// The server has reached its maximum number of connections.
    Busy = 4,
    /// The first frame was not a greeting.
    Malformed = 5,
    /// The greeting took too long.
    Late = 6,
}

impl RefusalReason {
    /// All reasons.
    pub const ALL: [RefusalReason; 6] = [
        RefusalReason::Version,
        RefusalReason::Feature,
        RefusalReason::Denied,
        RefusalReason::Busy,
        RefusalReason::Malformed,
        RefusalReason::Late,
    ];
}

/// A decoded refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Reason.
    pub reason: RefusalReason,
    /// Oldest and newest protocol version that the server speaks.
    pub versions: (u16, u16),
    /// Missing features, one bit each.
    pub missing: u64,
    /// Human-readable text: lower-case, `key=value` at the end.
    pub text: String,
}

const WHAT: &str = "greeting";
const REFUSAL: &str = "refusal";

impl Greeting {
    /// The body of a hello or a welcome.
    pub fn encode(&self) -> Vec<u8> {
        bytemuck::bytes_of(self).to_vec()
    }

    /// The body of the hello of a client on the host of this name.
    pub fn encode_with_host(&self, host: &str) -> Vec<u8> {
        let host = &host.as_bytes()[..host.len().min(HOST_NAME_MAX)];
        let head = HostNameHead { host_bytes: host.len() as u16, reserved: [0; 6] };
        [bytemuck::bytes_of(self), bytemuck::bytes_of(&head), host].concat()
    }

    /// The name of the client's host in the body of a hello, if it has one.
    pub fn host_of(body: &[u8]) -> Option<&str> {
        let rest = body.get(Greeting::BYTES..)?;
        let head: HostNameHead = read(rest)?;
        let length = usize::from(head.host_bytes);
        let name = rest.get(HostNameHead::BYTES..)?.get(..length)?;
        let known = |byte: &u8| byte.is_ascii_alphanumeric() || b".-_".contains(byte);
        let is_name = (1..=HOST_NAME_MAX).contains(&length) && name.iter().all(known);
        std::str::from_utf8(name).ok().filter(|_| is_name && is_zero(&head.reserved))
    }

    /// Read a body. Bytes after the fields that this build knows are ignored.
    pub fn decode(body: &[u8]) -> Result<Greeting, FormatError> {
        let have = body.len() as u64;
        let need = Greeting::BYTES as u64;
        let g: Greeting = read(body).ok_or(FormatError::Short { structure: WHAT, need, have })?;
        let checks = [
            ("body", have <= GREETING_BODY_MAX.into()),
            ("version_min", g.version_min >= 1),
            ("version_max", g.version_max >= g.version_min),
            ("auth", g.auth != 0),
            ("checksums", g.checksums != 0),
            ("alignment", g.alignment.is_power_of_two()),
            ("control_bytes_max", g.control_bytes_max >= CONTROL_BODY_LEAST),
            ("data_bytes_max", g.data_bytes_max >= DATA_BODY_LEAST),
            ("object_bytes_max", g.object_bytes_max >= 1),
            ("operations_max", g.operations_max >= 1),
            ("reserved", g.reserved == 0 && is_zero(&g.reserved_too)),
        ];
        match checks.into_iter().find(|(_, ok)| !ok) {
            Some((field, _)) => Err(FormatError::field(WHAT, field, "out of range")),
            None => Ok(g),
        }
    }
}

impl Refusal {
    /// The body of a refusal; a text longer than [`REFUSAL_TEXT_MAX`] is truncated.
    pub fn encode(&self) -> Vec<u8> {
        let mut end = self.text.len().min(REFUSAL_TEXT_MAX);
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        let text = &self.text.as_bytes()[..end];
        let head = RefusalHead {
            reason: self.reason as u8,
            reserved: 0,
            version_min: self.versions.0,
            version_max: self.versions.1,
            text_bytes: text.len() as u16,
            missing: self.missing,
        };
        [bytemuck::bytes_of(&head), text].concat()
    }

    /// Read a body.
    pub fn decode(body: &[u8]) -> Result<Refusal, FormatError> {
        let have = body.len() as u64;
        let short =
            |need: usize| FormatError::Short { structure: REFUSAL, need: need as u64, have };
        let head: RefusalHead = read(body).ok_or_else(|| short(RefusalHead::BYTES))?;
        let reason = RefusalReason::ALL.into_iter().find(|r| *r as u8 == head.reason);
        let reason = reason.ok_or_else(|| FormatError::field(REFUSAL, "reason", head.reason))?;
        if head.reserved != 0 {
            return Err(FormatError::field(REFUSAL, "reserved", head.reserved));
        }
        let text = &body[RefusalHead::BYTES..];
        if text.len() != usize::from(head.text_bytes) || text.len() > REFUSAL_TEXT_MAX {
            return Err(FormatError::field(REFUSAL, "text_bytes", head.text_bytes));
        }
        let text =
            str::from_utf8(text).map_err(|_| FormatError::field(REFUSAL, "text", "not UTF-8"))?;
        let versions = (head.version_min, head.version_max);
        Ok(Refusal { reason, versions, missing: head.missing, text: text.into() })
    }
}
