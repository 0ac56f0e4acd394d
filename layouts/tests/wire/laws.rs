//! Properties of random values: `decode(encode(x)) == x`.

use pagelith_layouts::checksum::{BLOCK_BYTES, Checksum, key_hash};
use pagelith_layouts::ids::{OpId, PrefixHash};
use pagelith_layouts::key::{ObjectKey, Role};
use pagelith_layouts::record::OBJECT_BYTES_MAX;
use pagelith_layouts::shard::Shard;
use pagelith_layouts::wire::head::{self, HeadFacts};
use pagelith_layouts::wire::outcome::{
    self, BaseRef, CauseTag, DecodedOutcome, ErrorTag, Failure, Item, ItemOutcome, OutcomeToSend,
    TierTag,
};
use pagelith_layouts::wire::put::PutBuilder;
use pagelith_layouts::wire::request::{self, GetItem, RequestBody, RequestOptions, Verb};
use pagelith_layouts::wire::{CONTROL_BODY_MAX, DATA_BODY_MAX, FrameKind, List};
use proptest::prelude::*;

use super::common::{NAMESPACE, bytes};
use super::config;

fn key() -> impl Strategy<Value = ObjectKey> {
    ("[A-Za-z0-9_.-]{1,30}", "[A-Za-z0-9_.-]{1,23}", any::<[u8; 32]>(), any::<bool>()).prop_map(
        |(pool, component, hash, draft)| {
            let role = if draft { Role::Draft } else { Role::Target };
            ObjectKey::new(NAMESPACE, PrefixHash(hash), role, &pool, &component, Shard::Whole)
                .expect("valid names")
        },
    )
}

fn keys() -> impl Strategy<Value = Vec<ObjectKey>> {
    prop::collection::vec(key(), 1..20)
}

fn terms() -> impl Strategy<Value = RequestOptions> {
    any::<(u32, u32, u64, bool)>().prop_map(|(deadline_ms, depth, request, from_store)| {
        RequestOptions { deadline_ms, depth, request, from_store, ..RequestOptions::default() }
    })
}

fn get_item() -> impl Strategy<Value = GetItem> {
    let range = (0..OBJECT_BYTES_MAX, 1..=OBJECT_BYTES_MAX)
        .prop_map(|(from, len)| from..(from + len).min(OBJECT_BYTES_MAX));
    (key(), prop::option::of(range), 1..=OBJECT_BYTES_MAX)
        .prop_map(|(key, range, length)| GetItem::new(key, range, length))
}

/// An object of a put: whether it begins a group, its length, and whether its checksums are sent.
type Planned = (ObjectKey, bool, u64, bool);

/// Kind of the put: of base groups, of attached groups, or of parts.
fn put() -> impl Strategy<Value = (Vec<Planned>, usize)> {
    (prop::collection::vec((key(), any::<bool>(), 1..200_000u64, any::<bool>()), 1..12), 0..3usize)
}

fn draft(objects: &[Planned], kind: usize, sums: &[Checksum]) -> PutBuilder {
    let required: Vec<ObjectKey> = objects.iter().map(|(key, ..)| *key).collect();
    let mut put = match kind {
        2 => PutBuilder::of_parts(BLOCK_BYTES, &required),
        _ => PutBuilder::new(BLOCK_BYTES),
    };
    for (i, (key, begins, length, summed)) in objects.iter().enumerate() {
        if i == 0 || *begins {
            put.group((kind == 1).then_some(*key));
        }
        let count = length.div_ceil(BLOCK_BYTES.into()) as usize;
        put.object(*key, *length, if *summed { &sums[..count] } else { &[] });
    }
    put
}

fn some_checksums(seed: u64) -> Vec<Checksum> {
    bytes(seed, 16 * 16).chunks_exact(16).map(|c| c.try_into().expect("16 bytes")).collect()
}

/// The outcome of an item as owned values: kind, length and text.
fn verdict() -> impl Strategy<Value = (usize, u64, String, i32)> {
    (0..7usize, 1..400_000u64, ".{0,40}", any::<i32>())
}

fn build<'a>(
    (which, length, text, errno): &'a (usize, u64, String, i32),
    sums: &'a [Checksum],
) -> ItemOutcome<'a> {
    let blocks = length.div_ceil(BLOCK_BYTES.into()) as usize;
    match which {
        0 => ItemOutcome::Hit {
            tier: TierTag::ALL[blocks % 3],
            length: *length,
            checksums: List::of(&sums[..blocks]),
            members: blocks as u32 % 4,
            base: None,
        },
        1 => ItemOutcome::Miss(CauseTag::ALL[blocks % 5]),
        2 => ItemOutcome::Stored,
        3 => ItemOutcome::AlreadyPresent,
        4 => ItemOutcome::Waiting,
        5 => ItemOutcome::Refused,
        _ => ItemOutcome::Failed(Failure { error: ErrorTag::ALL[blocks % 9], errno: *errno, text }),
    }
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn random_frame_header_round_trips(
        op in 1..u64::MAX,
        item in any::<u32>(),
        offset in 0..u64::from(u32::MAX),
        len in 1..=DATA_BODY_MAX,
        control in 1..=CONTROL_BODY_MAX,
        sum in any::<u64>(),
        mac in any::<[u8; 16]>(),
        version in 1..u16::MAX,
    ) {
        let data = HeadFacts::data(version, OpId(op), item, offset, len);
        prop_assert_eq!(head::decode(&head::encode(&data, mac), Some(version)), Ok((data, mac)));
        let facts = HeadFacts { body_bytes: control, body_checksum: sum, ..HeadFacts::control(version, FrameKind::Outcome, OpId(op), &[]) };
        prop_assert_eq!(head::decode(&head::encode(&facts, mac), Some(version)), Ok((facts, mac)));
        prop_assert!(head::decode(&head::encode(&facts, mac), Some(version ^ 1)).is_err());
    }

    #[test]
    fn requests_with_keys_round_trip(terms in terms(), keys in keys(), number in 1..u64::MAX, verb in 0..5u8) {
        let list = List::of(&keys);
        let named = [RequestBody::Pin(number, list), RequestBody::Lease(number, list)];
        let ask = [&[RequestBody::Exists(list), RequestBody::ExistsPrefix(list), RequestBody::Remove(list)][..], &named].concat()[usize::from(verb)];
        let body = request::encode(terms, &ask);
        prop_assert_eq!(request::decode(&body), Ok((terms, ask)));
    }

    #[test]
    fn get_round_trips(terms in terms(), rate in any::<u64>(), items in prop::collection::vec(get_item(), 1..20)) {
        let ask = RequestBody::Get(List::of(&items));
        let terms = RequestOptions { prefill_tokens_per_s: rate, ..terms };
        let body = request::encode(terms, &ask);
        prop_assert_eq!(request::decode(&body), Ok((terms, ask)));
    }

    #[test]
    fn put_round_trips(terms in terms(), (objects, kind) in put(), seed in any::<u64>()) {
        let sums = some_checksums(seed);
        let put = draft(&objects, kind, &sums);
        let ask = RequestBody::Put(put.puts().expect("a put"));
        let body = request::encode(terms, &ask);
        prop_assert_eq!(request::decode(&body), Ok((terms, ask)));
        let (_, RequestBody::Put(read)) = request::decode(&body).expect("just read") else { panic!("a put") };
        prop_assert_eq!((read.base(0).is_some(), read.required().is_some()), (kind == 1, kind == 2));
        for (object, (key, _, length, summed)) in read.objects().zip(&objects) {
            prop_assert_eq!((object.key, object.length), (*key, *length));
            let count = if *summed { length.div_ceil(BLOCK_BYTES.into()) as usize } else { 0 };
            prop_assert_eq!(object.checksums.iter().collect::<Vec<_>>(), &sums[..count]);
        }
    }

    #[test]
    fn outcomes_with_items_round_trip(verdicts in prop::collection::vec((key(), verdict(), key()), 1..20), seed in any::<u64>()) {
        let sums = some_checksums(seed);
        let mut bases: Vec<ObjectKey> = Vec::new();
        let items: Vec<_> = verdicts.iter().map(|(key, v, of)| {
            let mut verdict = build(v, &sums);
            if let ItemOutcome::Hit { members: 1.., base, length, .. } = &mut verdict {
                // Every third item has no base, and some share the base of an earlier item.
                let number = (*length as usize / 3) % (bases.len() + 1);
                if number == bases.len() {
                    bases.push(*of);
                }
                *base = (*length % 3 > 0 || number + 1 == bases.len()).then(|| BaseRef { number: number as u32, key: bases[number] });
            }
            Item { key_hash: key_hash(key), verdict }
        }).collect();
        let body = outcome::encode(Verb::Get, &OutcomeToSend::Items(&items, BLOCK_BYTES));
        let Ok((Verb::Get, DecodedOutcome::Items(read))) = outcome::decode(&body) else { panic!("items") };
        prop_assert_eq!(read.iter().collect::<Vec<_>>(), items);
    }

    #[test]
    fn outcomes_with_bits_and_texts_round_trip(bits in prop::collection::vec(any::<bool>(), 1..70), text in ".{0,99}", number in any::<u64>()) {
        let body = outcome::encode(Verb::Exists, &OutcomeToSend::Bits(&bits));
        let Ok((Verb::Exists, DecodedOutcome::Bits(read))) = outcome::decode(&body) else { panic!("bits") };
        prop_assert_eq!(read.iter().collect::<Vec<_>>(), bits);
        let body = outcome::encode(Verb::Stats, &OutcomeToSend::Text(&text));
        prop_assert_eq!(outcome::decode(&body), Ok((Verb::Stats, DecodedOutcome::Text(&text))));
        let body = outcome::encode(Verb::Clear, &OutcomeToSend::Number(number));
        prop_assert_eq!(outcome::decode(&body), Ok((Verb::Clear, DecodedOutcome::Number(number))));
        let failure = Failure { error: ErrorTag::Internal, errno: 5, text: &text };
        let body = outcome::encode(Verb::Exists, &OutcomeToSend::Failed(failure));
        prop_assert_eq!(outcome::decode(&body), Ok((Verb::Exists, DecodedOutcome::Failed(failure))));
    }
}
