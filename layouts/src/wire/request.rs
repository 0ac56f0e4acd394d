//! Requests of a client. They have keys, lengths, ranges and checksums; the bytes of a put are
//! pulled separately.

use std::ops::Range;

use super::List;
use super::put::{PutBody, PutGroupKind, PutItem};
use crate::checksum::{Checksum, is_valid_block_bytes};
use crate::error::FormatError;
use crate::format::{is_zero, read, structure};
use crate::ids::NamespaceId;
use crate::key::{KeyCheck, ObjectKey};
use crate::record::OBJECT_BYTES_MAX;

structure! {
    /// Start of a request's body. `item_count` keys (exists, prefix, remove, pin, lease, begin,
    /// prefetch, view, used, hint), get items or put items follow; then `group_count` keys of bases
    /// (attached puts only) or `required_count` keys (parts only); then `checksum_count` checksums
    /// of 16 bytes.
    pub struct RequestHead = 64 {
        /// 1 exists, 2 exists prefix, 3 get, 4 put, 5 put attached, 6 remove, 7 clear, 8 flush, 9
        /// stats, 10 ping, 11 put parts, 12 pin, 13 unpin, 14 lease, 15 begin, 16 put into, 17
        /// commit, 18 abort, 19 missing, 20 events, 21 prefetch, 22 view, 23 hold, 24 release, 25
        /// used, 26 hint.
        verb: u8,
        /// Bit 0: the sender is a store that has this one as a peer.
        flags: u8,
        /// Zero.
        reserved: u16,
        /// Milliseconds from when the server has read the request; 0 for the server's default.
        deadline_ms: u32,
        /// Number of items, at least 1 if the verb has items.
        item_count: u32,
        /// Groups of a put, at least 1.
        group_count: u32,
        /// Payload checksums of a put.
        checksum_count: u32,
        /// Block size of the payload checksums; zero without checksums.
        block_bytes: u32,
        /// Chain depth in pages of the first key; deeper keys follow in order.
        depth: u32,
        /// In a put of parts, the number of objects of a complete group, at least 1.
        required_count: u32,
        /// Identifier of the client's own request, for recency; 0 if the request stands alone.
        request: u64,
        /// Namespace to clear.
        namespace: NamespaceId,
        /// The client's name of a pin (pin, unpin, view) or an open group (begin, put into, commit,
        /// abort, missing) or a hold (hold, release), of this connection; how many milliseconds
        /// (lease), how many bytes (used), which hint (hint). At least 1 there. From where on
        /// (events), 0 for what happens from now on. How many tokens the client recomputes in a
        /// second (get), 0 for the server's setting. Reserved, of any value (put, put attached, put
        /// parts).
        number: u64,
    }
}

structure! {
    /// One object to get.
    pub struct GetItem = 160 {
        /// Whole key.
        pub key: ObjectKey,
        /// First byte of the range; 0 for the whole object.
        from: u64,
        /// One past the last byte of the range; 0 for the whole object.
        to: u64,
        /// Length of the destination, equal to the length of the object or of the range.
        length: u64,
        /// Bit 0: a range. Bit 1: its bytes are to be sent, and not shown. Bit 2: reserved, and
        /// without effect. Other bits are zero, and bit 2 where bit 1 is set.
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

/// Declares the verbs with their tags, and the list of all verbs.
macro_rules! verbs {
    ($($(#[$doc:meta])* $name:ident = $tag:literal,)*) => {
        /// Verb of a request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Verb {
            $($(#[$doc])* $name = $tag,)*
        }

        impl Verb {
            /// All verbs.
            pub const ALL: &[Verb] = &[$(Verb::$name,)*];
        }
    };
}

verbs! {
    /// Which keys are present.
    Exists = 1,
    /// Number of keys present before the first that is absent.
    ExistsPrefix = 2,
    /// Read objects.
    Get = 3,
    /// Store groups.
    Put = 4,
    /// Store objects attached to groups.
    PutAttached = 5,
    /// Remove objects and their groups.
    Remove = 6,
    /// Make a namespace's objects invisible.
    Clear = 7,
    /// Make all puts durable.
    Flush = 8,
    /// Counters.
    Stats = 9,
    /// Check that the store answers.
    Ping = 10,
    /// Store parts of groups.
    PutParts = 11,
    /// Pin objects until they are unpinned or the connection ends.
    Pin = 12,
    /// Release a pin or a view.
    Unpin = 13,
    /// Keep objects for a given time.
    Lease = 14,
    /// Open a group, or join one that is open.
    Begin = 15,
    /// Put objects into an open group.
    PutInto = 16,
    /// Make an open group visible.
    Commit = 17,
    /// Discard an open group.
    Abort = 18,
    /// Which objects of an open group are neither put nor present.
    Missing = 19,
    /// Events about objects that are stored and removed.
    Events = 20,
    /// Read objects into memory ahead of gets.
    Prefetch = 21,
    /// Location of objects in memory, where they are pinned until they are unpinned.
    View = 22,
    /// Store no objects received from other stores until the hold is released.
    Hold = 23,
    /// Release a hold; the reply states whether it was still in force.
    Release = 24,
    /// Reserved: by it clients of earlier builds reported what they copied without asking.
    Used = 25,
    /// Hint about the future use of objects.
    Hint = 26,
}

impl Verb {
    /// The verb with this tag; no verb has tag 0.
    pub fn from_tag(tag: u8) -> Option<Verb> {
        Verb::ALL.iter().copied().find(|verb| *verb as u8 == tag)
    }
}

impl GetItem {
    /// A get of an object of `length` bytes, or of a range of it; with a range, `length` is
    /// ignored.
    pub fn new(key: ObjectKey, range: Option<Range<u64>>, length: u64) -> GetItem {
        let (from, to, flags) = range.map_or((0, 0, 0), |r| (r.start, r.end, FLAG_RANGE));
        let length = if flags == 0 { length } else { to.saturating_sub(from) };
        GetItem { key, from, to, length, flags, reserved: 0 }
    }

    /// The same get, with its bytes sent instead of passed by reference.
    pub fn sent(self) -> GetItem {
        GetItem { flags: self.flags | FLAG_SENT, ..self }
    }

    /// Whether its bytes must be sent instead of passed by reference.
    pub fn is_sent(&self) -> bool {
        self.flags & FLAG_SENT != 0
    }

    /// As earlier builds asked where both had [`Feature::Files`](super::greeting::Feature::Files):
    /// it is a get like any other.
    pub fn read_by_client(self) -> GetItem {
        GetItem { flags: self.flags | FLAG_READS, ..self }
    }

    /// Which bytes; `None` for all.
    pub fn range(&self) -> Option<Range<u64>> {
        (self.flags & FLAG_RANGE != 0).then_some(self.from..self.to)
    }

    /// Length of the destination in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The requested bytes of the object, as a range.
    pub fn byte_range(&self) -> Range<u64> {
        self.range().unwrap_or(0..self.length)
    }

    /// Check that the item is valid in a request.
    pub fn check(&self) -> Result<(), FormatError> {
        self.key.check()?;
        self.check_rest()
    }

    /// As [`GetItem::check`], without the key.
    fn check_rest(&self) -> Result<(), FormatError> {
        const WHAT: &str = "get item";
        let wrong = |field, value: u64| Err(FormatError::field(WHAT, field, value));
        if !(1..=OBJECT_BYTES_MAX).contains(&self.length) {
            return wrong("length", self.length);
        }
        let how = self.flags & (FLAG_SENT | FLAG_READS);
        if self.reserved != 0
            || self.flags & !(FLAG_RANGE | how) != 0
            || how == FLAG_SENT | FLAG_READS
        {
            return wrong("flags", self.flags.into());
        }
        let range_ok = match self.range() {
            Some(r) => r.end <= OBJECT_BYTES_MAX && r.end.checked_sub(r.start) == Some(self.length),
            None => (self.from, self.to) == (0, 0),
        };
        if range_ok { Ok(()) } else { wrong("to", self.to) }
    }
}

/// Options of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestOptions {
    /// Deadline in milliseconds from when the server has read the request; 0 for the server's
    /// default.
    pub deadline_ms: u32,
    /// Chain depth in pages of the first key.
    pub depth: u32,
    /// Identifier of the client's own request; 0 if the request stands alone.
    pub request: u64,
    /// Whether the sender is a store that has this one as a peer. Requires the feature `peers`.
    pub from_store: bool,
    /// In a get, how many tokens the client recomputes in a second; 0 for the rate that the server
    /// is set to. Requires the feature `prefill_rate`. Without effect in other requests.
    pub prefill_tokens_per_s: u64,
}

/// A decoded request, borrowed from its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestBody<'a> {
    /// Which of these keys are present.
    Exists(List<'a, ObjectKey>),
    /// Number of these keys present before the first that is absent.
    ExistsPrefix(List<'a, ObjectKey>),
    /// Read these objects.
    Get(List<'a, GetItem>),
    /// Store these objects; [`PutBody::with`] determines the verb.
    Put(PutBody<'a>),
    /// Remove these objects.
    Remove(List<'a, ObjectKey>),
    /// Clear this namespace.
    Clear(NamespaceId),
    /// Make all puts durable.
    Flush,
    /// Counters.
    Stats,
    /// Check that the store answers.
    Ping,
    /// Pin these objects under a name that no other pin or view of the connection has.
    Pin(u64, List<'a, ObjectKey>),
    /// Locate these objects in memory and pin them there under a name that no other pin or view of
    /// the connection has.
    View(u64, List<'a, ObjectKey>),
    /// Release the pin or view with this name.
    Unpin(u64),
    /// Keep these objects for this many milliseconds.
    Lease(u64, List<'a, ObjectKey>),
    /// Open the group of these objects, under a name that no other open group of the connection
    /// has.
    Begin(u64, List<'a, ObjectKey>),
    /// Make the open group with this name visible.
    Commit(u64),
    /// Discard the open group with this name.
    Abort(u64),
    /// Which objects of the open group with this name are neither put nor present.
    Missing(u64),
    /// Events from this position, which is the `next` of the last reply, or 0 for new events only.
    Events(u64),
    /// Read these objects into memory ahead of gets.
    Prefetch(List<'a, ObjectKey>),
    /// Store no objects received from other stores, under a name above those of all earlier holds
    /// of the connection.
    Hold(u64),
    /// Release the hold with this name; the reply states whether it was still in force.
    Release(u64),
    /// Reserved: these were copied from memory that is shown; the number of bytes in all.
    Used(u64, List<'a, ObjectKey>),
    /// A hint about the future use of these objects, by the number of its
    /// [`WireHint`](super::hint::WireHint).
    Hint(u64, List<'a, ObjectKey>),
}

impl RequestBody<'_> {
    /// Its verb.
    pub fn verb(&self) -> Verb {
        match self {
            RequestBody::Exists(_) => Verb::Exists,
            RequestBody::ExistsPrefix(_) => Verb::ExistsPrefix,
            RequestBody::Get(_) => Verb::Get,
            RequestBody::Put(puts) => match puts.group_kind() {
                PutGroupKind::Nothing => Verb::Put,
                PutGroupKind::Bases(_) => Verb::PutAttached,
                PutGroupKind::Required(_) => Verb::PutParts,
                PutGroupKind::Open(_) => Verb::PutInto,
            },
            RequestBody::Remove(_) => Verb::Remove,
            RequestBody::Clear(_) => Verb::Clear,
            RequestBody::Flush => Verb::Flush,
            RequestBody::Stats => Verb::Stats,
            RequestBody::Ping => Verb::Ping,
            RequestBody::Pin(..) => Verb::Pin,
            RequestBody::Unpin(_) => Verb::Unpin,
            RequestBody::Lease(..) => Verb::Lease,
            RequestBody::Begin(..) => Verb::Begin,
            RequestBody::Commit(_) => Verb::Commit,
            RequestBody::Abort(_) => Verb::Abort,
            RequestBody::Missing(_) => Verb::Missing,
            RequestBody::Events(_) => Verb::Events,
            RequestBody::Prefetch(_) => Verb::Prefetch,
            RequestBody::View(..) => Verb::View,
            RequestBody::Hold(_) => Verb::Hold,
            RequestBody::Release(_) => Verb::Release,
            RequestBody::Used(..) => Verb::Used,
            RequestBody::Hint(..) => Verb::Hint,
        }
    }
}

/// Encode the body of a request. Nothing is checked; [`decode`] checks.
pub fn encode(terms: RequestOptions, ask: &RequestBody<'_>) -> Vec<u8> {
    let mut head: RequestHead = bytemuck::Zeroable::zeroed();
    head.verb = ask.verb() as u8;
    (head.deadline_ms, head.depth, head.request) = (terms.deadline_ms, terms.depth, terms.request);
    head.flags = if terms.from_store { FLAG_STORE } else { 0 };
    let mut parts: [&[u8]; 3] = [&[]; 3];
    match ask {
        RequestBody::Exists(keys)
        | RequestBody::ExistsPrefix(keys)
        | RequestBody::Remove(keys)
        | RequestBody::Prefetch(keys) => {
            (head.item_count, parts[0]) = (keys.len() as u32, keys.bytes());
        }
        RequestBody::Get(items) => {
            (head.item_count, parts[0]) = (items.len() as u32, items.bytes());
            head.number = terms.prefill_tokens_per_s;
        }
        RequestBody::Put(puts) => {
            head.item_count = puts.items().len() as u32;
            head.group_count = puts.group_count();
            head.checksum_count = puts.checksums().len() as u32;
            head.block_bytes = puts.block_bytes();
            let keys = puts.group_kind().keys();
            head.required_count = if puts.required().is_some() { keys.len() as u32 } else { 0 };
            head.number = puts.open().or(puts.steady()).unwrap_or(0);
            parts = [puts.items().bytes(), keys.bytes(), puts.checksums().bytes()];
        }
        RequestBody::Pin(number, keys)
        | RequestBody::View(number, keys)
        | RequestBody::Used(number, keys)
        | RequestBody::Hint(number, keys)
        | RequestBody::Lease(number, keys)
        | RequestBody::Begin(number, keys) => {
            (head.number, head.item_count, parts[0]) = (*number, keys.len() as u32, keys.bytes());
        }
        RequestBody::Unpin(name)
        | RequestBody::Commit(name)
        | RequestBody::Abort(name)
        | RequestBody::Missing(name) => head.number = *name,
        RequestBody::Hold(number) | RequestBody::Release(number) | RequestBody::Events(number) => {
            head.number = *number
        }
        RequestBody::Clear(namespace) => head.namespace = *namespace,
        RequestBody::Flush | RequestBody::Stats | RequestBody::Ping => {}
    }
    [bytemuck::bytes_of(&head), parts[0], parts[1], parts[2]].concat()
}

/// Read a request. `Ok` means that every key and number is valid; the caller must check that the
/// peer is authorized.
pub fn decode(body: &[u8]) -> Result<(RequestOptions, RequestBody<'_>), FormatError> {
    let have = body.len() as u64;
    let head: RequestHead = read(body).ok_or(FormatError::Short {
        structure: WHAT,
        need: RequestHead::BYTES as u64,
        have,
    })?;
    let verb =
        Verb::from_tag(head.verb).ok_or_else(|| FormatError::field(WHAT, "verb", head.verb))?;
    if head.flags & !FLAG_STORE != 0 || head.reserved != 0 {
        return Err(FormatError::field(WHAT, "reserved", "not zero"));
    }
    check_counts(&head, verb)?;
    let mut rest = &body[RequestHead::BYTES..];
    let ask = decode_body(&head, verb, &mut rest)?;
    if !rest.is_empty() {
        return Err(FormatError::field(WHAT, "length", have));
    }
    let from_store = head.flags & FLAG_STORE != 0;
    let terms = RequestOptions {
        deadline_ms: head.deadline_ms,
        depth: head.depth,
        request: head.request,
        from_store,
        prefill_tokens_per_s: if verb == Verb::Get { head.number } else { 0 },
    };
    Ok((terms, ask))
}

/// Check that counts and numbers that the verb does not use are zero.
fn check_counts(head: &RequestHead, verb: Verb) -> Result<(), FormatError> {
    let (items, puts, number) = match verb {
        Verb::Put | Verb::PutAttached | Verb::PutParts => (true, true, false),
        Verb::Exists | Verb::ExistsPrefix | Verb::Get | Verb::Remove | Verb::Prefetch => {
            (true, false, false)
        }
        Verb::Clear | Verb::Flush | Verb::Stats | Verb::Ping | Verb::Events => {
            (false, false, false)
        }
        Verb::PutInto => (true, true, true),
        Verb::Pin | Verb::View | Verb::Lease | Verb::Begin | Verb::Used | Verb::Hint => {
            (true, false, true)
        }
        Verb::Unpin | Verb::Commit | Verb::Abort | Verb::Missing | Verb::Hold | Verb::Release => {
            (false, false, true)
        }
    };
    // Reserved in puts.
    let may_be_any = puts && verb != Verb::PutInto || matches!(verb, Verb::Events | Verb::Get);
    let block_ok = if head.checksum_count > 0 {
        is_valid_block_bytes(head.block_bytes)
    } else {
        head.block_bytes == 0
    };
    let checks = [
        ("item_count", (head.item_count > 0) == items),
        ("group_count", (head.group_count > 0) == puts && head.group_count <= head.item_count),
        ("required_count", (head.required_count > 0) == (verb == Verb::PutParts)),
        ("number", may_be_any || (head.number > 0) == number),
        ("checksum_count", puts || head.checksum_count == 0),
        ("block_bytes", block_ok),
        ("namespace", verb == Verb::Clear || is_zero(&head.namespace.0)),
    ];
    match checks.into_iter().find(|(_, ok)| !ok) {
        Some((field, _)) => Err(FormatError::field(WHAT, field, "out of range")),
        None => Ok(()),
    }
}

fn decode_body<'a>(
    head: &RequestHead,
    verb: Verb,
    rest: &mut &'a [u8],
) -> Result<RequestBody<'a>, FormatError> {
    let missing = |field| move || FormatError::field(WHAT, field, "beyond the end of the body");
    let keys = |rest: &mut &'a [u8], count| -> Result<List<'a, ObjectKey>, FormatError> {
        let keys = List::<ObjectKey>::take(rest, count).ok_or_else(missing("item_count"))?;
        KeyCheck::check_all(keys.iter())?;
        Ok(keys)
    };
    Ok(match verb {
        Verb::Exists => RequestBody::Exists(keys(rest, head.item_count)?),
        Verb::ExistsPrefix => RequestBody::ExistsPrefix(keys(rest, head.item_count)?),
        Verb::Remove => RequestBody::Remove(keys(rest, head.item_count)?),
        Verb::Prefetch => RequestBody::Prefetch(keys(rest, head.item_count)?),
        Verb::Pin => RequestBody::Pin(head.number, keys(rest, head.item_count)?),
        Verb::View => RequestBody::View(head.number, keys(rest, head.item_count)?),
        Verb::Used => RequestBody::Used(head.number, keys(rest, head.item_count)?),
        Verb::Hint => RequestBody::Hint(head.number, keys(rest, head.item_count)?),
        Verb::Lease => RequestBody::Lease(head.number, keys(rest, head.item_count)?),
        Verb::Unpin => RequestBody::Unpin(head.number),
        Verb::Begin => RequestBody::Begin(head.number, keys(rest, head.item_count)?),
        Verb::Commit => RequestBody::Commit(head.number),
        Verb::Abort => RequestBody::Abort(head.number),
        Verb::Missing => RequestBody::Missing(head.number),
        Verb::Events => RequestBody::Events(head.number),
        Verb::Hold => RequestBody::Hold(head.number),
        Verb::Release => RequestBody::Release(head.number),
        Verb::Get => {
            let items =
                List::<GetItem>::take(rest, head.item_count).ok_or_else(missing("item_count"))?;
            let mut keys = KeyCheck::default();
            items
                .iter()
                .try_for_each(|item| keys.check(&item.key).and_then(|()| item.check_rest()))?;
            RequestBody::Get(items)
        }
        Verb::Put | Verb::PutAttached | Verb::PutParts | Verb::PutInto => {
            let items =
                List::<PutItem>::take(rest, head.item_count).ok_or_else(missing("item_count"))?;
            let with = match verb {
                Verb::PutAttached => PutGroupKind::Bases(keys(rest, head.group_count)?),
                Verb::PutParts => PutGroupKind::Required(keys(rest, head.required_count)?),
                Verb::PutInto => PutGroupKind::Open(head.number),
                _ => PutGroupKind::Nothing,
            };
            let sums = List::<Checksum>::take(rest, head.checksum_count)
                .ok_or_else(missing("checksum_count"))?;
            let steady = if verb == Verb::PutInto { 0 } else { head.number };
            RequestBody::Put(PutBody::checked(
                items,
                with,
                sums,
                head.block_bytes,
                head.group_count,
                steady,
            )?)
        }
        Verb::Clear => RequestBody::Clear(head.namespace),
        Verb::Flush => RequestBody::Flush,
        Verb::Stats => RequestBody::Stats,
        Verb::Ping => RequestBody::Ping,
    })
}
