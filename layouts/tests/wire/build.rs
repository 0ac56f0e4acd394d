//! One frame of every kind and form, as written by the current encoder. There are no inputs: the
//! bytes are always the same.

use pagelith_layouts::checksum::{BLOCK_BYTES, Checksum, checksum, key_hash};
use pagelith_layouts::ids::OpId;
use pagelith_layouts::key::{ObjectKey, Role};
use pagelith_layouts::wire::auth::{ChallengeBody, ProofBody};
use pagelith_layouts::wire::greeting::{self, Feature, Greeting, Refusal, RefusalReason};
use pagelith_layouts::wire::head::{self, HeadFacts};
use pagelith_layouts::wire::hint::WireHint;
use pagelith_layouts::wire::outcome::{
    BaseRef, CauseTag, ErrorTag, EventItem, Failure, Flushed, Item, ItemOutcome, OutcomeToSend,
    RegionExtent, TierTag, ViewItem, WireEvent, digest,
};
use pagelith_layouts::wire::placement::{self, NoticedItem, PlacedBody, TargetItem};
use pagelith_layouts::wire::pull::{self, PullItem};
use pagelith_layouts::wire::put::PutBuilder;
use pagelith_layouts::wire::rails::{self, RailItem, Rails};
use pagelith_layouts::wire::rdma_regions::{self, RegionItem};
use pagelith_layouts::wire::request::{self, GetItem, RequestBody, RequestOptions, Verb};
use pagelith_layouts::wire::shm_ref::{self, Released, ShownPiece};
use pagelith_layouts::wire::{Frame, FrameKind, List, VERSION_GREETING, outcome};

use super::common::{NAMESPACE, bytes, checksums, key};

/// A named frame, with its header.
pub(crate) type Named = (&'static str, Vec<u8>);

/// Protocol version of the frames.
pub(crate) const VERSION: u16 = 1;
/// Operation of the frames.
pub(crate) const OP: OpId = OpId(0x0102_0304_0506_0708);
/// Placeholder of the MAC in the frames.
pub(crate) const MAC: [u8; 16] = *b"sixteen mac byte";

/// Keys of one page: the target's `k` and `v`, and the draft's `k`.
pub(crate) fn keys() -> [ObjectKey; 3] {
    [
        key(1, Role::Target, "kv", "k"),
        key(1, Role::Target, "kv", "v"),
        key(1, Role::Draft, "kv", "k"),
    ]
}

/// A control frame's bytes.
pub(crate) fn control(frame: &Frame) -> Vec<u8> {
    let greeting = frame.kind.is_greeting();
    let version = if greeting { VERSION_GREETING } else { VERSION };
    let facts = HeadFacts::control(version, frame.kind, frame.op, &frame.body);
    let mac = if greeting { [0; 16] } else { MAC };
    [&head::encode(&facts, mac)[..], &frame.body].concat()
}

pub(crate) fn greeting() -> Greeting {
    Greeting {
        version_min: 1,
        version_max: 1,
        auth: greeting::AUTH_KEY,
        checksums: greeting::CHECKSUM_XXH3_128,
        reserved: 0,
        alignment: 4096,
        control_bytes_max: 1 << 20,
        data_bytes_max: 1 << 20,
        operations_max: 256,
        object_bytes_max: 128 << 20,
        // The features that existed when the frames were recorded.
        features: Feature::ALL[..6].iter().fold(0, |all, f| all | f.bit()),
        instance: *b"one process here",
        reserved_too: [0; 8],
    }
}

pub(crate) fn refusal() -> Refusal {
    let text = "no protocol version in common ours=1..1 theirs=2..3".to_owned();
    Refusal { reason: RefusalReason::Version, versions: (1, 1), missing: 0, text }
}

/// A put of one group of two objects, and of one group whose checksums the server computes.
pub(crate) fn put() -> PutBuilder {
    let [k, v, draft] = keys();
    let mut put = PutBuilder::new(BLOCK_BYTES);
    put.group(None);
    put.object(k, 70_000, &checksums(&bytes(1, 70_000), BLOCK_BYTES));
    put.object(v, 4096, &checksums(&bytes(2, 4096), BLOCK_BYTES));
    put.group(None);
    put.object(draft, 100, &[]);
    put
}

/// Objects attached to a group.
pub(crate) fn attached() -> PutBuilder {
    let mut put = PutBuilder::new(BLOCK_BYTES);
    put.group(Some(keys()[0]));
    put.object(key(1, Role::Target, "mamba", "temporal"), 100, &[checksum(&bytes(3, 100))]);
    put
}

/// A part of a group of two objects.
pub(crate) fn parts() -> PutBuilder {
    let [k, v, _] = keys();
    let mut put = PutBuilder::of_parts(BLOCK_BYTES, &[k, v]);
    put.group(None);
    put.object(v, 4096, &checksums(&bytes(2, 4096), BLOCK_BYTES));
    put
}

/// Every kind of item.
pub(crate) fn items(sums: &[Checksum]) -> Vec<Item<'_>> {
    let verdicts = [
        ItemOutcome::Hit {
            tier: TierTag::Ssd,
            length: 70_000,
            checksums: List::of(sums),
            members: 0,
            base: None,
        },
        ItemOutcome::Miss(CauseTag::Absent),
        ItemOutcome::Failed(Failure {
            error: ErrorTag::Busy,
            errno: 11,
            text: "staging is lent bytes=70000",
        }),
    ];
    keys()
        .iter()
        .zip(verdicts)
        .map(|(key, verdict)| Item { key_hash: key_hash(key), verdict })
        .collect()
}

/// An object passed by reference without checksums, and one with checksums.
pub(crate) fn steady() -> PutBuilder {
    let [k, v, _] = keys();
    let mut put = PutBuilder::new(BLOCK_BYTES);
    put.group(None);
    put.object(k, 70_000, &[]);
    put.shown(1, 8192);
    put.group(None);
    put.object(v, 4096, &checksums(&bytes(2, 4096), BLOCK_BYTES));
    put.steady(9);
    put
}

/// An object of an open group.
pub(crate) fn for_open_group() -> PutBuilder {
    let mut put = PutBuilder::for_open_group(BLOCK_BYTES, 6);
    put.group(None);
    put.object(keys()[1], 4096, &checksums(&bytes(2, 4096), BLOCK_BYTES));
    put
}

/// The options of all requests.
pub(crate) const TERMS: RequestOptions = RequestOptions {
    deadline_ms: 250,
    depth: 3,
    request: 7,
    from_store: false,
    prefill_tokens_per_s: 0,
};
/// Those of a get that states how fast its sender recomputes.
pub(crate) const RATED: RequestOptions = RequestOptions { prefill_tokens_per_s: 25_000, ..TERMS };

/// A hint with a duration.
pub(crate) const HINT: WireHint = WireHint::Retain { ms: 60_000 };

fn requests() -> Vec<Named> {
    let keys = keys();
    let (put, attached, parts, for_open_group) = (put(), attached(), parts(), for_open_group());
    let steady = steady();
    let gets = [GetItem::new(keys[0], None, 70_000), GetItem::new(keys[1], Some(100..4096), 0)];
    let gets_how = [gets[0].sent(), gets[0].read_by_client(), gets[1].read_by_client()];
    let asks = [
        ("request_exists", RequestBody::Exists(List::of(&keys))),
        ("request_exists_prefix", RequestBody::ExistsPrefix(List::of(&keys))),
        ("request_get", RequestBody::Get(List::of(&gets))),
        ("request_get_how", RequestBody::Get(List::of(&gets_how))),
        ("request_put", RequestBody::Put(put.puts().expect("a put"))),
        ("request_put_attached", RequestBody::Put(attached.puts().expect("a put"))),
        ("request_put_parts", RequestBody::Put(parts.puts().expect("a put"))),
        ("request_put_steady", RequestBody::Put(steady.puts().expect("a put"))),
        ("request_remove", RequestBody::Remove(List::of(&keys[..1]))),
        ("request_clear", RequestBody::Clear(NAMESPACE)),
        ("request_flush", RequestBody::Flush),
        ("request_stats", RequestBody::Stats),
        ("request_ping", RequestBody::Ping),
        ("request_pin", RequestBody::Pin(5, List::of(&keys))),
        ("request_unpin", RequestBody::Unpin(5)),
        ("request_begin", RequestBody::Begin(6, List::of(&keys[..2]))),
        ("request_put_into", RequestBody::Put(for_open_group.puts().expect("a put"))),
        ("request_commit", RequestBody::Commit(6)),
        ("request_abort", RequestBody::Abort(6)),
        ("request_missing", RequestBody::Missing(6)),
        ("request_lease", RequestBody::Lease(60_000, List::of(&keys[..2]))),
        ("request_events", RequestBody::Events(41)),
        ("request_view", RequestBody::View(7, List::of(&keys[..2]))),
        ("request_prefetch", RequestBody::Prefetch(List::of(&keys[..2]))),
        ("request_hold", RequestBody::Hold(8)),
        ("request_release", RequestBody::Release(8)),
        ("request_used", RequestBody::Used(135_536, List::of(&keys[..2]))),
        ("request_hint", RequestBody::Hint(HINT.number(), List::of(&keys[..2]))),
    ];
    let frame =
        |terms, ask| control(&Frame::new(FrameKind::Request, OP, request::encode(terms, ask)));
    let rated = RequestBody::Get(List::of(&gets));
    let rated = [("request_get_rate", frame(RATED, &rated))];
    asks.iter().map(|(name, ask)| (*name, frame(TERMS, ask))).chain(rated).collect()
}

fn outcomes() -> Vec<Named> {
    let sums = checksums(&bytes(1, 70_000), BLOCK_BYTES);
    let items = items(&sums);
    let stored = [
        ItemOutcome::Stored,
        ItemOutcome::AlreadyPresent,
        ItemOutcome::Waiting,
        ItemOutcome::Refused,
    ];
    let stored = stored.map(|verdict| Item { key_hash: key_hash(&keys()[0]), verdict });
    let flushed =
        Flushed { durable_objects: 3, durable_bytes: 74_196, refused_objects: 1, lost_objects: 0 };
    let happened = [
        WireEvent::Stored(TierTag::Memory, keys()[0], true),
        WireEvent::Removed(TierTag::Ssd, keys()[1], false),
        WireEvent::Cleared(NAMESPACE),
        WireEvent::Forgot(TierTag::Ssd),
    ];
    let events = happened.map(|happened| EventItem::of(&happened));
    let location = RegionExtent { region: 0, at: 81_920, length: 70_000, digest: digest(&sums) };
    let views = [Some(location), None].map(|location| ViewItem::of(key_hash(&keys()[0]), location));
    let hit = |members, base| Item {
        key_hash: key_hash(&keys()[0]),
        verdict: ItemOutcome::Hit {
            tier: TierTag::Memory,
            length: 70_000,
            checksums: List::of(&sums),
            members,
            base,
        },
    };
    let of_two = hit(2, None);
    let base = |number, of: usize| Some(BaseRef { number, key: keys()[of] });
    let attached = [
        hit(2, base(0, 0)),
        hit(1, base(1, 0)),
        hit(3, None),
        hit(2, base(0, 0)),
        hit(1, base(2, 1)),
    ];
    let failed = Failure { error: ErrorTag::Closed, errno: 0, text: "the store is closed" };
    let answers = [
        ("outcome_get", Verb::Get, OutcomeToSend::Items(&items, BLOCK_BYTES)),
        ("outcome_get_members", Verb::Get, OutcomeToSend::Items(&[of_two], BLOCK_BYTES)),
        ("outcome_get_attached", Verb::Get, OutcomeToSend::Items(&attached, BLOCK_BYTES)),
        ("outcome_put", Verb::Put, OutcomeToSend::Items(&stored, 0)),
        ("outcome_exists", Verb::Exists, OutcomeToSend::Bits(&[true, false, true])),
        ("outcome_exists_prefix", Verb::ExistsPrefix, OutcomeToSend::Number(2)),
        ("outcome_remove", Verb::Remove, OutcomeToSend::Number(1)),
        ("outcome_clear", Verb::Clear, OutcomeToSend::Number(2)),
        ("outcome_flush", Verb::Flush, OutcomeToSend::Flushed(flushed)),
        ("outcome_stats", Verb::Stats, OutcomeToSend::Text("{\"puts_stored\":3}")),
        ("outcome_ping", Verb::Ping, OutcomeToSend::Number(0)),
        ("outcome_pin", Verb::Pin, OutcomeToSend::Number(3)),
        ("outcome_unpin", Verb::Unpin, OutcomeToSend::Number(3)),
        ("outcome_begin", Verb::Begin, OutcomeToSend::Number(2)),
        ("outcome_put_into", Verb::PutInto, OutcomeToSend::Items(&stored[2..3], 0)),
        ("outcome_commit", Verb::Commit, OutcomeToSend::Number(3)),
        ("outcome_abort", Verb::Abort, OutcomeToSend::Number(2)),
        ("outcome_missing", Verb::Missing, OutcomeToSend::Bits(&[true, false])),
        ("outcome_lease", Verb::Lease, OutcomeToSend::Number(2)),
        ("outcome_view", Verb::View, OutcomeToSend::Views(&views)),
        ("outcome_prefetch", Verb::Prefetch, OutcomeToSend::Number(2)),
        ("outcome_hold", Verb::Hold, OutcomeToSend::Number(0)),
        ("outcome_release", Verb::Release, OutcomeToSend::Number(1)),
        ("outcome_used", Verb::Used, OutcomeToSend::Number(2)),
        ("outcome_hint", Verb::Hint, OutcomeToSend::Number(2)),
        ("outcome_events", Verb::Events, OutcomeToSend::Events(&events, 45, 3)),
        ("outcome_failed", Verb::Get, OutcomeToSend::Failed(failed)),
    ];
    let frame =
        |verb, answer| control(&Frame::new(FrameKind::Outcome, OP, outcome::encode(verb, answer)));
    answers.iter().map(|(name, verb, answer)| (*name, frame(*verb, answer))).collect()
}

/// Location of bytes passed by reference.
pub(crate) fn pieces() -> [ShownPiece; 2] {
    [ShownPiece::new(0, 1 << 30, 32_768), ShownPiece::new(1, 4096, 100)]
}

/// Ranges that the receiver no longer reads; the bytes of the last were not read.
pub(crate) fn released() -> [Released; 3] {
    let released = |range, unread| Released { range, unread };
    [
        released((OP, 1, 4096), false),
        released((OpId(3), 0, 0), false),
        released((OP, 2, 8192), true),
    ]
}

/// A client's two rails.
pub(crate) fn rails() -> Rails {
    let rail = |name, pair| {
        let mut item = RailItem::of_device(name);
        item.gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1];
        (item.queue_pair, item.packet, item.pair) = (0x1234 + pair, 0x00ab_cdef, pair);
        (item.port, item.link_layer, item.mtu, item.reads) = (1, rails::ETHERNET, 5, 16);
        item
    };
    Rails { rails: vec![rail("mlx5_0", 0), rail("mlx5_1", 1)], notices: 256, text: String::new() }
}

/// A region of two chunks on two rails, and one that is removed.
pub(crate) fn regions() -> (Vec<RegionItem>, Vec<u32>) {
    let region = |rail| RegionItem {
        number: 1,
        rail,
        base: 0x7f00_0000_0000,
        length: 70_000,
        chunk_bytes: 65_536,
    };
    let removed = RegionItem { number: 0, rail: 0, base: 0, length: 0, chunk_bytes: 0 };
    (vec![region(0), region(1), removed], vec![0x100, 0x101, 0x200, 0x201])
}

pub(crate) fn targets() -> [TargetItem; 2] {
    [
        TargetItem { item: 0, region: 1, offset: 0, at: 4096, length: 60_000 },
        TargetItem { item: 1, region: 1, offset: 100, at: 69_999, length: 1 },
    ]
}

pub(crate) const PLACED: PlacedBody = PlacedBody { notice: 5, length: 60_000, rail: 1 };

pub(crate) fn noticed() -> [NoticedItem; 2] {
    [NoticedItem::new(0, 7), NoticedItem::new(1, 1 << 40)]
}

/// The frames of links over RDMA.
pub(crate) fn rdma() -> Vec<Named> {
    let frame = |kind, op, body| control(&Frame::new(kind, op, body));
    let (items, keys) = regions();
    let body = PLACED.encode();
    let placed = HeadFacts::placed(VERSION, OP, 1, 4096, &body);
    let no_rails = Rails::none("no active port device=mlx5_0");
    vec![
        ("rails", frame(FrameKind::Rails, OpId(0), rails().encode())),
        ("rails_none", frame(FrameKind::Rails, OpId(0), no_rails.encode())),
        ("regions", frame(FrameKind::Regions, OpId(0), rdma_regions::encode(&items, &keys))),
        ("targets", frame(FrameKind::Targets, OP, placement::encode_targets(&targets()))),
        ("placed", [&head::encode(&placed, MAC)[..], &body].concat()),
        ("noticed", frame(FrameKind::Noticed, OpId(0), placement::encode_noticed(&noticed()))),
        (
            "taken_unread",
            frame(FrameKind::Taken, OpId(0), shm_ref::encode_released(&released()[2..])),
        ),
    ]
}

/// A frame of every kind, in an order that a connection may see.
pub(crate) fn frames() -> Vec<Named> {
    let greet = |kind, body: Vec<u8>| control(&Frame::new(kind, OpId(0), body));
    let bare = |kind, op| control(&Frame::bare(kind, op));
    let challenge = ChallengeBody { nonce: [0x5a; 32] };
    let proof = ProofBody::new("rank-0", [0xa5; 32], [0x3c; 32]).expect("a name");
    let pulls = [PullItem::new(0, 0, 65_536), PullItem::new(1, 0, 4096)];
    let data = HeadFacts::data(VERSION, OP, 1, 4096, 100);
    let mut frames = vec![
        ("hello", greet(FrameKind::Hello, greeting().encode())),
        ("hello_named", greet(FrameKind::Hello, greeting().encode_with_host("node-7.example"))),
        ("welcome", greet(FrameKind::Welcome, greeting().encode())),
        ("refusal", greet(FrameKind::Refusal, refusal().encode())),
        ("challenge", greet(FrameKind::Challenge, bytemuck::bytes_of(&challenge).to_vec())),
        ("proof", greet(FrameKind::Proof, bytemuck::bytes_of(&proof).to_vec())),
        ("pull", control(&Frame::new(FrameKind::Pull, OP, pull::encode(&pulls)))),
        ("data", [&head::encode(&data, MAC)[..], &bytes(4, 100)].concat()),
        ("cancel", bare(FrameKind::Cancel, OP)),
        ("ping", bare(FrameKind::Ping, OpId(9))),
        ("pong", bare(FrameKind::Pong, OpId(9))),
        ("bye", bare(FrameKind::Bye, OpId(0))),
        ("shown", control(&Frame::new(FrameKind::Shown, OP, shm_ref::encode(1, 4096, &pieces())))),
        (
            "taken",
            control(&Frame::new(
                FrameKind::Taken,
                OpId(0),
                shm_ref::encode_released(&released()[..2]),
            )),
        ),
    ];
    frames.extend(rdma());
    frames.extend(requests());
    frames.extend(outcomes());
    frames
}

/// A hello of a later version: other protocol versions, and more bytes than this build knows.
pub(crate) fn hello_newer() -> Vec<u8> {
    let newer = Greeting { version_min: 2, version_max: 3, features: u64::MAX, ..greeting() };
    let body = [&newer.encode()[..], b"what a later version says"].concat();
    control(&Frame::new(FrameKind::Hello, OpId(0), body))
}
