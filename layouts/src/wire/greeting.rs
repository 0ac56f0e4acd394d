//! Greetings: the first frame of each side, which says what it speaks and can do; and the refusal of a peer that
//! is not served. Both sides compute what is agreed from the two greetings; nothing is asked twice or guessed.

use crate::error::FormatError;
use crate::format::{is_zero, read, structure};
use crate::wire::{CONTROL_BODY_LEAST, DATA_BODY_LEAST, GREETING_BODY_MAX};

structure! {
    /// Body of a hello and of a welcome. One of a later version may be longer: a reader takes what it knows and
    /// leaves the rest, so that versions can meet; the rest is covered by the proof all the same.
    pub struct Greeting = 64 {
        /// Oldest protocol version that the sender speaks, at least 1.
        pub version_min: u16,
        /// Newest protocol version that the sender speaks.
        pub version_max: u16,
        /// How peers are known. Bit 0: by the connection itself (Unix credentials, or whoever is on this host), bit 1:
        /// by a pre-shared key. In a hello what the client can, in a welcome the one that the server demands.
        pub auth: u8,
        /// Payload checksums that the sender makes and reads. Bit 0: XXH3-128.
        pub checksums: u8,
        /// Zero.
        pub reserved: u16,
        /// Alignment in bytes of memory that the sender moves bytes to without another copy, a power of two.
        pub alignment: u32,
        /// Longest control body in bytes that the sender reads, at least 16384.
        pub control_bytes_max: u32,
        /// Longest body of a data frame in bytes that the sender reads, at least 65536.
        pub data_bytes_max: u32,
        /// Most operations that may be in flight on the connection, as far as the sender goes, at least 1.
        pub operations_max: u32,
        /// Longest object in bytes that the sender can hold, at least 1.
        pub object_bytes_max: u64,
        /// Features that the sender has, a bit each; a reader ignores those it does not know.
        pub features: u64,
        /// Names the sender's process, at random: a store process that restarted is another one.
        pub instance: [u8; 16],
        /// Zero.
        pub reserved_too: [u8; 8],
    }
}

structure! {
    /// Start of a refusal's body; a text of at most 512 bytes follows, for people.
    pub struct RefusalHead = 16 {
        /// Why: 1 no common version, 2 a feature is missing, 3 not known or not allowed, 4 too many connections, 5 what
        /// came was no greeting, 6 too late; 0 is never valid.
        reason: u8,
        /// Zero.
        reserved: u8,
        /// Oldest protocol version that the server speaks.
        version_min: u16,
        /// Newest protocol version that the server speaks.
        version_max: u16,
        /// Length of the text in bytes.
        text_bytes: u16,
        /// Features that are missing, a bit each.
        missing: u64,
    }
}

/// The peer is known by the connection itself.
pub const AUTH_CONNECTION: u8 = 1;
/// The peer is known by a pre-shared key.
pub const AUTH_KEY: u8 = 2;
/// Payload checksums are XXH3-128.
pub const CHECKSUM_XXH3_128: u8 = 1;
/// Longest text of a refusal in bytes.
pub const REFUSAL_TEXT_MAX: usize = 512;

/// What a peer may or may not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u64)]
pub enum Feature {
    /// Gets of a range of an object.
    Ranges = 1,
    /// Groups of several objects that become visible together.
    Groups = 1 << 1,
    /// Objects attached to a group.
    Attached = 1 << 2,
    /// Puts are kept across a restart once they are flushed.
    Durable = 1 << 3,
    /// Pools of any name, not a fixed set.
    AnyPool = 1 << 4,
    /// Puts without checksums: the store makes them of what arrived.
    ServerChecksums = 1 << 5,
    /// Memory that both sides have carries the link, over a socket of one host.
    SharedMemory = 1 << 6,
    /// Groups that are put in several calls.
    Parts = 1 << 7,
    /// Bytes are shown where they lie, in memory that was handed over on the socket of one host.
    Shown = 1 << 8,
    /// Pins and leases, which the store holds for a connection.
    Pins = 1 << 9,
    /// Groups that are begun in one call and put and committed in others.
    Begun = 1 << 10,
    /// What comes and goes is told to whoever asks.
    Events = 1 << 11,
    /// What will be asked for soon is read into memory.
    Prefetch = 1 << 12,
    /// Objects are looked at where they lie in memory that was handed over, for as long as the client wants.
    Views = 1 << 13,
    /// A hit says how many objects were put with it.
    Members = 1 << 14,
    /// Who gets bytes that are not what was vouched for asks for them once more, so that the store looks at its own.
    AsksAgain = 1 << 15,
    /// Reserved: hits from SSD that a client reads itself, out of files that were handed over on the socket of one host.
    Files = 1 << 16,
    /// A request may say that it is a store's, which has this one for a peer.
    Peers = 1 << 17,
    /// Stores bring each other what is attached: a hit of one says what it is attached to, and what is offered to a base that is not here is
    /// refused and does not wait.
    Bases = 1 << 18,
    /// While a store tells its peers of a removal, they keep nothing that stores bring each other.
    Holds = 1 << 19,
    /// A client's word that what it shows is as it was counts, in place of checksums.
    Steady = 1 << 20,
    /// What lies where in memory that is shown stands in a catalog beside it: a client copies hits from there without asking, and says later what it used.
    Catalog = 1 << 21,
}

impl Feature {
    /// Features of earlier builds: no build offers them any more, and their bits are not used for anything else.
    const RESERVED: [Feature; 1] = [Feature::Files];

    /// All features, by bit.
    pub const ALL: [Feature; 22] = [
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
        Feature::Steady,
        Feature::Catalog,
    ];

    /// The bits of the features that this build has.
    pub fn of_this_build() -> u64 {
        let has = |feature: &Feature| !Feature::RESERVED.contains(feature);
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
            Feature::Steady => "steady",
            Feature::Catalog => "catalog",
        }
    }

    /// The names of the bits in `features`, by bit; bits that this build does not know have none.
    pub fn names(features: u64) -> Vec<&'static str> {
        Feature::ALL.into_iter().filter(|f| features & f.bit() != 0).map(Feature::name).collect()
    }
}

/// Why a peer is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reason {
    /// No version that both speak.
    Version = 1,
    /// A feature that one side cannot do without.
    Feature = 2,
    /// The peer is not known, or not allowed here.
    Denied = 3,
    /// As many connections as are allowed.
    Busy = 4,
    /// What came was no greeting.
    Malformed = 5,
    /// The greeting took too long.
    Late = 6,
}

impl Reason {
    /// All reasons, for tables.
    pub const ALL: [Reason; 6] =
        [Reason::Version, Reason::Feature, Reason::Denied, Reason::Busy, Reason::Malformed, Reason::Late];
}

/// A refusal as it is read and written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// Versions that the server speaks, oldest and newest.
    pub versions: (u16, u16),
    /// Features that are missing, a bit each.
    pub missing: u64,
    /// For people: lower-case, `key=value` at the end.
    pub text: String,
}

const WHAT: &str = "greeting";
const REFUSAL: &str = "refusal";

impl Greeting {
    /// The body of a hello or a welcome.
    pub fn encode(&self) -> Vec<u8> {
        bytemuck::bytes_of(self).to_vec()
    }

    /// Read a body. What follows the part that this build knows is left alone.
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
    /// The body of a refusal; a text that is too long is cut.
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
        let short = |need: usize| FormatError::Short { structure: REFUSAL, need: need as u64, have };
        let head: RefusalHead = read(body).ok_or_else(|| short(RefusalHead::BYTES))?;
        let reason = Reason::ALL.into_iter().find(|r| *r as u8 == head.reason);
        let reason = reason.ok_or_else(|| FormatError::field(REFUSAL, "reason", head.reason))?;
        if head.reserved != 0 {
            return Err(FormatError::field(REFUSAL, "reserved", head.reserved));
        }
        let text = &body[RefusalHead::BYTES..];
        if text.len() != usize::from(head.text_bytes) || text.len() > REFUSAL_TEXT_MAX {
            return Err(FormatError::field(REFUSAL, "text_bytes", head.text_bytes));
        }
        let text = str::from_utf8(text).map_err(|_| FormatError::field(REFUSAL, "text", "no utf-8"))?;
        let versions = (head.version_min, head.version_max);
        Ok(Refusal { reason, versions, missing: head.missing, text: text.into() })
    }
}
