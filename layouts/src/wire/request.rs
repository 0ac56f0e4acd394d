//! Requests: what a client asks for. Control only: keys, lengths, ranges, checksums; the bytes of a put are pulled.

use std::ops::Range;

use super::List;
use super::put::{PutItem, Puts, With};
use crate::checksum::{Checksum, block_bytes_ok};
use crate::error::FormatError;
use crate::format::{is_zero, read, structure};
use crate::ids::NamespaceId;
use crate::key::{KeyCheck, ObjectKey};
use crate::record::OBJECT_BYTES_MAX;

structure! {
    /// Start of a request's body. Behind it come `item_count` keys (exists, prefix, remove, pin, lease, begin, prefetch, view, used), get items or
    /// put items; then `group_count` keys of bases (attached puts alone) or `required_count` keys (parts alone); then
    /// `checksum_count` checksums of 16 bytes.
    pub struct RequestHead = 64 {
        /// What is asked: 1 exists, 2 exists prefix, 3 get, 4 put, 5 put attached, 6 remove, 7 clear, 8 flush, 9 stats, 10
        /// ping, 11 put parts, 12 pin, 13 unpin, 14 lease, 15 begin, 16 put into, 17 commit, 18 abort, 19
        /// missing, 20 events, 21 prefetch, 22 view, 23 hold, 24 release, 25 used; 0 is never valid.
        verb: u8,
        /// Bit 0: it is a store's that has this one for a peer: it is answered from what is here, and nothing of it goes on from here to
        /// other stores. Other bits are zero.
        flags: u8,
        /// Zero.
        reserved: u16,
        /// Longest that it may take, in milliseconds from when the server has read it; 0 for the server's default.
        deadline_ms: u32,
        /// Number of items, at least 1 where the verb has items.
        item_count: u32,
        /// Number of groups of a put, at least 1 in a put; else zero.
        group_count: u32,
        /// Number of payload checksums of a put; else zero.
        checksum_count: u32,
        /// Block size of the payload checksums in bytes; zero where there is none.
        block_bytes: u32,
        /// Chain depth in pages of the first key; deeper keys follow in order.
        depth: u32,
        /// Number of objects that the groups of a put of parts consist of, at least 1 there; else zero.
        required_count: u32,
        /// Names the client's own request that it belongs to, for recency; 0 for one by itself.
        request: u64,
        /// Which namespace to clear; else zero.
        namespace: NamespaceId,
        /// What the client calls a pin (pin, unpin, view) or an open group (begin, put into, commit, abort, missing) or a hold (hold, release), of this connection; how many milliseconds (lease), how many bytes (used). At least 1 there. From where
        /// on (events), 0 for what happens from now on. Under which the client says that what it shows without checksums is as it was (put, put attached, put parts), 0 if it does not. Else zero.
        number: u64,
    }
}

structure! {
    /// One object to be got.
    pub struct GetItem = 160 {
        /// Whole key.
        pub key: ObjectKey,
        /// First byte wanted; 0 for all.
        from: u64,
        /// One past the last byte wanted; 0 for all.
        to: u64,
        /// Bytes that the destination has room for: the length of the object, or of the range.
        length: u64,
        /// Bit 0: a range. Bit 1: its bytes are to be sent, and not shown. Bit 2: reserved, and without
        /// effect. Other bits are zero, and bit 2 where bit 1 is set.
        flags: u32,
        /// Zero.
        reserved: u32,
    }
}

const WHAT: &str = "request";
const FLAG_STORE: u8 = 1;
const FLAG_RANGE: u32 = 1;
const FLAG_SENT: u32 = 2;
const FLAG_READS: u32 = 4;

/// The verbs and their tags, as a type that has a list of them all.
macro_rules! verbs {
    ($($(#[$doc:meta])* $name:ident = $tag:literal,)*) => {
        /// What is asked.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Verb {
            $($(#[$doc])* $name = $tag,)*
        }

        impl Verb {
            /// All verbs, for tables.
            pub const ALL: &[Verb] = &[$(Verb::$name,)*];
        }
    };
}

verbs! {
    /// Which keys are here.
    Exists = 1,
    /// How many keys are here before the first that is not.
    ExistsPrefix = 2,
    /// Bytes.
    Get = 3,
    /// Store groups.
    Put = 4,
    /// Store objects attached to groups.
    PutAttached = 5,
    /// Remove objects and their groups.
    Remove = 6,
    /// Make a namespace's objects invisible.
    Clear = 7,
    /// Make durable what was put.
    Flush = 8,
    /// Counters.
    Stats = 9,
    /// Nothing: whether the store answers.
    Ping = 10,
    /// Store parts of groups.
    PutParts = 11,
    /// Keep objects, until they are let go or the connection ends.
    Pin = 12,
    /// Let go what was pinned.
    Unpin = 13,
    /// Keep objects for some time.
    Lease = 14,
    /// Begin a group, or join it.
    Begin = 15,
    /// Put objects into a group that was begun.
    PutInto = 16,
    /// Make such a group visible.
    Commit = 17,
    /// Give such a group up.
    Abort = 18,
    /// Which objects of such a group are neither put nor here.
    Missing = 19,
    /// What came and went.
    Events = 20,
    /// Read objects into memory that will be asked for soon.
    Prefetch = 21,
    /// Where objects lie in memory, which they keep until they are let go as a pin is.
    View = 22,
    /// Keep nothing of what stores bring each other, until it is released.
    Hold = 23,
    /// End that; whether it had lasted.
    Release = 24,
    /// What was got without asking.
    Used = 25,
}

impl Verb {
    /// The verb of a tag; 0 is none.
    pub fn of(tag: u8) -> Option<Verb> {
        Verb::ALL.iter().copied().find(|verb| *verb as u8 == tag)
    }
}

impl GetItem {
    /// A get of all of an object of `length` bytes, or of a range of it. A range decides the length.
    pub fn new(key: ObjectKey, range: Option<Range<u64>>, length: u64) -> GetItem {
        let (from, to, flags) = range.map_or((0, 0, 0), |r| (r.start, r.end, FLAG_RANGE));
        let length = if flags == 0 { length } else { to.saturating_sub(from) };
        GetItem { key, from, to, length, flags, reserved: 0 }
    }

    /// The same, to be sent and not shown.
    pub fn sent(self) -> GetItem {
        GetItem { flags: self.flags | FLAG_SENT, ..self }
    }

    /// Whether its bytes are to be sent, and not shown.
    pub fn is_sent(&self) -> bool {
        self.flags & FLAG_SENT != 0
    }

    /// As earlier builds asked where both had [`Feature::Files`](super::greeting::Feature::Files): it is a get like any other.
    pub fn read_by_client(self) -> GetItem {
        GetItem { flags: self.flags | FLAG_READS, ..self }
    }

    /// Which bytes; `None` for all.
    pub fn range(&self) -> Option<Range<u64>> {
        (self.flags & FLAG_RANGE != 0).then_some(self.from..self.to)
    }

    /// Bytes that the destination has room for.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The stretch of the object that is wanted, in bytes.
    pub fn stretch(&self) -> Range<u64> {
        self.range().unwrap_or(0..self.length)
    }

    /// Whether a store may be asked for it.
    pub fn check(&self) -> Result<(), FormatError> {
        self.key.check()?;
        self.check_rest()
    }

    /// The same but for its key.
    fn check_rest(&self) -> Result<(), FormatError> {
        const WHAT: &str = "get item";
        let wrong = |field, value: u64| Err(FormatError::field(WHAT, field, value));
        if !(1..=OBJECT_BYTES_MAX).contains(&self.length) {
            return wrong("length", self.length);
        }
        let how = self.flags & (FLAG_SENT | FLAG_READS);
        if self.reserved != 0 || self.flags & !(FLAG_RANGE | how) != 0 || how == FLAG_SENT | FLAG_READS {
            return wrong("flags", self.flags.into());
        }
        let range_ok = match self.range() {
            Some(r) => r.end <= OBJECT_BYTES_MAX && r.end.checked_sub(r.start) == Some(self.length),
            None => (self.from, self.to) == (0, 0),
        };
        if range_ok { Ok(()) } else { wrong("to", self.to) }
    }
}

/// How a request is to be treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Longest that it may take, in milliseconds from when the server has read it; 0 for the server's default.
    pub deadline_ms: u32,
    /// Chain depth in pages of the first key.
    pub depth: u32,
    /// Names the client's own request that it belongs to; 0 for one by itself.
    pub request: u64,
    /// It is a store's that has this one for a peer. Not without the feature `peers`.
    pub of_store: bool,
}

/// What a request asks for; a view that owns nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask<'a> {
    /// Which of these are here.
    Exists(List<'a, ObjectKey>),
    /// How many of these are here before the first that is not.
    ExistsPrefix(List<'a, ObjectKey>),
    /// Bytes of these.
    Get(List<'a, GetItem>),
    /// Store these; [`Puts::with`] says which of the three verbs it is.
    Put(Puts<'a>),
    /// Remove these.
    Remove(List<'a, ObjectKey>),
    /// Clear this namespace.
    Clear(NamespaceId),
    /// Make durable what was put.
    Flush,
    /// Counters.
    Stats,
    /// Whether the store answers.
    Ping,
    /// Keep these under a name that the connection has no other pin by.
    Pin(u64, List<'a, ObjectKey>),
    /// Where these lie in memory; they stay there under a name that the connection has no pin or other view by.
    View(u64, List<'a, ObjectKey>),
    /// Let go what is pinned or looked at under this name.
    Unpin(u64),
    /// Keep these for so many milliseconds.
    Lease(u64, List<'a, ObjectKey>),
    /// Begin the group of these, under a name that the connection has no other group by.
    Begin(u64, List<'a, ObjectKey>),
    /// Make the group of this name visible.
    Commit(u64),
    /// Give the group of this name up.
    Abort(u64),
    /// Which objects of the group of this name are neither put nor here.
    Missing(u64),
    /// What came and went, from here on: what the last answer said, or 0 for what does from now on.
    Events(u64),
    /// Read these into memory: they will be asked for soon.
    Prefetch(List<'a, ObjectKey>),
    /// Keep nothing of what stores bring each other, under a name above all that the connection had for a hold.
    Hold(u64),
    /// End the hold of this name; whether it had lasted until now.
    Release(u64),
    /// These were got from memory that is shown, so many bytes in all.
    Used(u64, List<'a, ObjectKey>),
}

impl Ask<'_> {
    /// Its verb.
    pub fn verb(&self) -> Verb {
        match self {
            Ask::Exists(_) => Verb::Exists,
            Ask::ExistsPrefix(_) => Verb::ExistsPrefix,
            Ask::Get(_) => Verb::Get,
            Ask::Put(puts) => match puts.with() {
                With::Nothing => Verb::Put,
                With::Bases(_) => Verb::PutAttached,
                With::Required(_) => Verb::PutParts,
                With::Open(_) => Verb::PutInto,
            },
            Ask::Remove(_) => Verb::Remove,
            Ask::Clear(_) => Verb::Clear,
            Ask::Flush => Verb::Flush,
            Ask::Stats => Verb::Stats,
            Ask::Ping => Verb::Ping,
            Ask::Pin(..) => Verb::Pin,
            Ask::Unpin(_) => Verb::Unpin,
            Ask::Lease(..) => Verb::Lease,
            Ask::Begin(..) => Verb::Begin,
            Ask::Commit(_) => Verb::Commit,
            Ask::Abort(_) => Verb::Abort,
            Ask::Missing(_) => Verb::Missing,
            Ask::Events(_) => Verb::Events,
            Ask::Prefetch(_) => Verb::Prefetch,
            Ask::View(..) => Verb::View,
            Ask::Hold(_) => Verb::Hold,
            Ask::Release(_) => Verb::Release,
            Ask::Used(..) => Verb::Used,
        }
    }
}

/// The body of a request. Whoever reads it checks it; here nothing is.
pub fn encode(terms: Terms, ask: &Ask<'_>) -> Vec<u8> {
    let mut head: RequestHead = bytemuck::Zeroable::zeroed();
    head.verb = ask.verb() as u8;
    (head.deadline_ms, head.depth, head.request) = (terms.deadline_ms, terms.depth, terms.request);
    head.flags = if terms.of_store { FLAG_STORE } else { 0 };
    let mut parts: [&[u8]; 3] = [&[]; 3];
    match ask {
        Ask::Exists(keys) | Ask::ExistsPrefix(keys) | Ask::Remove(keys) | Ask::Prefetch(keys) => {
            (head.item_count, parts[0]) = (keys.len() as u32, keys.bytes());
        }
        Ask::Get(items) => (head.item_count, parts[0]) = (items.len() as u32, items.bytes()),
        Ask::Put(puts) => {
            head.item_count = puts.items().len() as u32;
            head.group_count = puts.group_count();
            head.checksum_count = puts.checksums().len() as u32;
            head.block_bytes = puts.block_bytes();
            let keys = puts.with().keys();
            head.required_count = if puts.required().is_some() { keys.len() as u32 } else { 0 };
            head.number = puts.open().or(puts.steady()).unwrap_or(0);
            parts = [puts.items().bytes(), keys.bytes(), puts.checksums().bytes()];
        }
        Ask::Pin(number, keys)
        | Ask::View(number, keys)
        | Ask::Used(number, keys)
        | Ask::Lease(number, keys)
        | Ask::Begin(number, keys) => {
            (head.number, head.item_count, parts[0]) = (*number, keys.len() as u32, keys.bytes());
        }
        Ask::Unpin(name) | Ask::Commit(name) | Ask::Abort(name) | Ask::Missing(name) => head.number = *name,
        Ask::Hold(number) | Ask::Release(number) | Ask::Events(number) => head.number = *number,
        Ask::Clear(namespace) => head.namespace = *namespace,
        Ask::Flush | Ask::Stats | Ask::Ping => {}
    }
    [bytemuck::bytes_of(&head), parts[0], parts[1], parts[2]].concat()
}

/// Read a request. Every key and every number in it has been checked when this is `Ok`; whether the peer may ask it
/// is not.
pub fn decode(body: &[u8]) -> Result<(Terms, Ask<'_>), FormatError> {
    let have = body.len() as u64;
    let head: RequestHead =
        read(body).ok_or(FormatError::Short { structure: WHAT, need: RequestHead::BYTES as u64, have })?;
    let verb = Verb::of(head.verb).ok_or_else(|| FormatError::field(WHAT, "verb", head.verb))?;
    if head.flags & !FLAG_STORE != 0 || head.reserved != 0 {
        return Err(FormatError::field(WHAT, "reserved", "not zero"));
    }
    check_counts(&head, verb)?;
    let mut rest = &body[RequestHead::BYTES..];
    let ask = read_ask(&head, verb, &mut rest)?;
    if !rest.is_empty() {
        return Err(FormatError::field(WHAT, "length", have));
    }
    let of_store = head.flags & FLAG_STORE != 0;
    let terms = Terms { deadline_ms: head.deadline_ms, depth: head.depth, request: head.request, of_store };
    Ok((terms, ask))
}

/// Numbers that the verb has no use for must be zero.
fn check_counts(head: &RequestHead, verb: Verb) -> Result<(), FormatError> {
    let (items, puts, number) = match verb {
        Verb::Put | Verb::PutAttached | Verb::PutParts => (true, true, false),
        Verb::Exists | Verb::ExistsPrefix | Verb::Get | Verb::Remove | Verb::Prefetch => (true, false, false),
        Verb::Clear | Verb::Flush | Verb::Stats | Verb::Ping | Verb::Events => (false, false, false),
        Verb::PutInto => (true, true, true),
        Verb::Pin | Verb::View | Verb::Lease | Verb::Begin | Verb::Used => (true, false, true),
        Verb::Unpin | Verb::Commit | Verb::Abort | Verb::Missing | Verb::Hold | Verb::Release => {
            (false, false, true)
        }
    };
    let may_be_steady = puts && verb != Verb::PutInto;
    let block_ok =
        if head.checksum_count > 0 { block_bytes_ok(head.block_bytes) } else { head.block_bytes == 0 };
    let checks = [
        ("item_count", (head.item_count > 0) == items),
        ("group_count", (head.group_count > 0) == puts && head.group_count <= head.item_count),
        ("required_count", (head.required_count > 0) == (verb == Verb::PutParts)),
        ("number", verb == Verb::Events || (head.number > 0) == number || may_be_steady),
        ("checksum_count", puts || head.checksum_count == 0),
        ("block_bytes", block_ok),
        ("namespace", verb == Verb::Clear || is_zero(&head.namespace.0)),
    ];
    match checks.into_iter().find(|(_, ok)| !ok) {
        Some((field, _)) => Err(FormatError::field(WHAT, field, "out of range")),
        None => Ok(()),
    }
}

fn read_ask<'a>(head: &RequestHead, verb: Verb, rest: &mut &'a [u8]) -> Result<Ask<'a>, FormatError> {
    let missing = |field| move || FormatError::field(WHAT, field, "not all there");
    let keys = |rest: &mut &'a [u8], count| -> Result<List<'a, ObjectKey>, FormatError> {
        let keys = List::<ObjectKey>::take(rest, count).ok_or_else(missing("item_count"))?;
        KeyCheck::check_all(keys.iter())?;
        Ok(keys)
    };
    Ok(match verb {
        Verb::Exists => Ask::Exists(keys(rest, head.item_count)?),
        Verb::ExistsPrefix => Ask::ExistsPrefix(keys(rest, head.item_count)?),
        Verb::Remove => Ask::Remove(keys(rest, head.item_count)?),
        Verb::Prefetch => Ask::Prefetch(keys(rest, head.item_count)?),
        Verb::Pin => Ask::Pin(head.number, keys(rest, head.item_count)?),
        Verb::View => Ask::View(head.number, keys(rest, head.item_count)?),
        Verb::Used => Ask::Used(head.number, keys(rest, head.item_count)?),
        Verb::Lease => Ask::Lease(head.number, keys(rest, head.item_count)?),
        Verb::Unpin => Ask::Unpin(head.number),
        Verb::Begin => Ask::Begin(head.number, keys(rest, head.item_count)?),
        Verb::Commit => Ask::Commit(head.number),
        Verb::Abort => Ask::Abort(head.number),
        Verb::Missing => Ask::Missing(head.number),
        Verb::Events => Ask::Events(head.number),
        Verb::Hold => Ask::Hold(head.number),
        Verb::Release => Ask::Release(head.number),
        Verb::Get => {
            let items = List::<GetItem>::take(rest, head.item_count).ok_or_else(missing("item_count"))?;
            let mut keys = KeyCheck::default();
            items.iter().try_for_each(|item| keys.check(&item.key).and_then(|()| item.check_rest()))?;
            Ask::Get(items)
        }
        Verb::Put | Verb::PutAttached | Verb::PutParts | Verb::PutInto => {
            let items = List::<PutItem>::take(rest, head.item_count).ok_or_else(missing("item_count"))?;
            let with = match verb {
                Verb::PutAttached => With::Bases(keys(rest, head.group_count)?),
                Verb::PutParts => With::Required(keys(rest, head.required_count)?),
                Verb::PutInto => With::Open(head.number),
                _ => With::Nothing,
            };
            let sums =
                List::<Checksum>::take(rest, head.checksum_count).ok_or_else(missing("checksum_count"))?;
            let steady = if verb == Verb::PutInto { 0 } else { head.number };
            Ask::Put(Puts::checked(items, with, sums, head.block_bytes, head.group_count, steady)?)
        }
        Verb::Clear => Ask::Clear(head.namespace),
        Verb::Flush => Ask::Flush,
        Verb::Stats => Ask::Stats,
        Verb::Ping => Ask::Ping,
    })
}
