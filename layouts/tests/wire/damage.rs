//! Flips every single bit of every frame's header and control body: each flip is detected. Forged
//! bodies with recomputed checksums: decoded values are valid, and nothing panics.

use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::auth::{ChallengeBody, ProofBody};
use pagelith_layouts::wire::greeting::{Greeting, Refusal};
use pagelith_layouts::wire::outcome::{self, DecodedOutcome, EventItem, OutcomeToSend, ViewItem};
use pagelith_layouts::wire::placement::{self, PlacedBody};
use pagelith_layouts::wire::put::PutGroupKind;
use pagelith_layouts::wire::rails::Rails;
use pagelith_layouts::wire::request::{self, RequestBody, RequestOptions};
use pagelith_layouts::wire::{FrameKind, List, head, pull, rdma_regions, shm_ref};
use proptest::prelude::*;
use proptest::sample::Index;

use super::build::*;
use super::common::NAMESPACE;
use super::config;

const HEAD: usize = 64;

#[test]
fn every_flipped_bit_of_header_or_control_body_is_detected() {
    for (name, mut frame) in frames() {
        assert!(head::split(&frame, Some(VERSION)).is_ok(), "{name}");
        let covered = if name == "data" { HEAD } else { frame.len() };
        for bit in 0..covered * 8 {
            frame[bit / 8] ^= 1 << (bit % 8);
            assert!(
                head::split(&frame, Some(VERSION)).is_err(),
                "{name}: bit={bit} was flipped unnoticed"
            );
            frame[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

/// The block checksums cover the bytes of data frames; this checks that none of them is taken for a
/// header.
#[test]
fn truncated_frame_is_refused_at_every_length() {
    for (name, frame) in frames() {
        for len in 0..frame.len() {
            assert!(head::split(&frame[..len], Some(VERSION)).is_err(), "{name} len={len}");
        }
    }
}

/// Decode a body by its kind and read all of its content; returns whether it was accepted.
fn read_all(kind: FrameKind, body: &[u8]) -> bool {
    match kind {
        FrameKind::Hello | FrameKind::Welcome => Greeting::decode(body).is_ok(),
        FrameKind::Refusal => Refusal::decode(body).is_ok(),
        FrameKind::Challenge => ChallengeBody::decode(body).is_ok(),
        FrameKind::Proof => ProofBody::decode(body).is_ok_and(|p| !p.key_name().is_empty()),
        FrameKind::Pull => pull::decode(body).is_ok_and(|items| items.iter().count() > 0),
        FrameKind::Request => read_request(body),
        FrameKind::Outcome => read_outcome(body),
        FrameKind::Shown => shm_ref::decode(body).is_ok_and(|said| said.pieces.iter().count() > 0),
        FrameKind::Taken => shm_ref::decode_released(body).is_ok_and(|ranges| ranges.count() > 0),
        FrameKind::Rails => Rails::decode(body).is_ok(),
        FrameKind::Regions => rdma_regions::decode(body).is_ok_and(|regions| {
            regions.iter().all(|(item, keys)| item.chunks() == keys.len() as u64)
        }),
        FrameKind::Targets => placement::decode_targets(body).is_ok_and(|items| !items.is_empty()),
        FrameKind::Placed => PlacedBody::decode(body).is_ok(),
        FrameKind::Noticed => placement::decode_noticed(body).is_ok_and(|items| !items.is_empty()),
        FrameKind::Data
        | FrameKind::Cancel
        | FrameKind::Ping
        | FrameKind::Pong
        | FrameKind::Bye => true,
    }
}

/// Counts beyond the body, and numbers in unused fields: no memory is allocated for them.
#[test]
fn forged_pin_counts_are_refused() {
    let keys = keys();
    let pin = request::encode(RequestOptions::default(), &RequestBody::Pin(5, List::of(&keys)));
    assert!(request::decode(&pin).is_ok());
    let refused = |name: &str, body: &[u8], at: usize, value: &[u8]| {
        let mut forged = body.to_vec();
        forged[at..at + value.len()].copy_from_slice(value);
        let error = request::decode(&forged).expect_err(name).to_string();
        assert!(error.contains(name), "{error}");
    };
    for count in [0, 2, 4, u32::MAX] {
        let name = match count {
            2 => "length",
            _ => "item_count",
        };
        refused(name, &pin, 8, &count.to_le_bytes());
    }
    refused("number", &pin, 56, &0u64.to_le_bytes());
    let unpin = request::encode(RequestOptions::default(), &RequestBody::Unpin(5));
    refused("number", &unpin, 56, &0u64.to_le_bytes());
    refused("item_count", &unpin, 8, &1u32.to_le_bytes());
    for held in [RequestBody::Hold(5), RequestBody::Release(5)] {
        refused(
            "number",
            &request::encode(RequestOptions::default(), &held),
            56,
            &0u64.to_le_bytes(),
        );
    }
    refused(
        "number",
        &request::encode(RequestOptions::default(), &RequestBody::Ping),
        56,
        &1u64.to_le_bytes(),
    );
}

/// An invalid role, and a wrong name length, in each key of each frame separately.
#[test]
fn invalid_key_is_refused_at_every_place_in_frames() {
    const ROLE: usize = 48;
    let mut forged = 0;
    for (name, frame) in frames() {
        let (facts, _, body) = head::split(&frame, Some(VERSION)).expect(name);
        let is_key = |bytes: &[u8; ObjectKey::BYTES]| {
            bytes.starts_with(&NAMESPACE.0) && ObjectKey::decode(bytes).is_ok()
        };
        let windows =
            body.windows(ObjectKey::BYTES).map(|bytes| bytes.try_into().expect("as long"));
        for (at, _) in windows.enumerate().filter(|(_, bytes)| is_key(bytes)) {
            for byte in [ROLE, ROLE + 1] {
                let mut body = body.to_vec();
                body[at + byte] = 9;
                assert!(!read_all(facts.kind, &body), "{name}: at={at} byte={byte}");
                forged += 1;
            }
        }
    }
    assert!(forged > 80, "{forged}");
}

fn read_request(body: &[u8]) -> bool {
    let Ok((terms, ask)) = request::decode(body) else { return false };
    match ask {
        RequestBody::Exists(keys)
        | RequestBody::ExistsPrefix(keys)
        | RequestBody::Remove(keys)
        | RequestBody::Prefetch(keys)
        | RequestBody::View(_, keys)
        | RequestBody::Used(_, keys)
        | RequestBody::Hint(_, keys)
        | RequestBody::Pin(_, keys)
        | RequestBody::Lease(_, keys)
        | RequestBody::Begin(_, keys) => {
            assert!(keys.iter().all(|key| key.to_string().parse() == Ok(key)));
        }
        RequestBody::Get(items) => {
            assert!(items.iter().all(|i| i.byte_range().end - i.byte_range().start == i.length()))
        }
        RequestBody::Put(puts) => {
            let groups = puts.objects().map(|o| o.group).max().map(|last| last + 1);
            assert_eq!(groups, Some(puts.group_count()));
            let attached = matches!(puts.group_kind(), PutGroupKind::Bases(_));
            assert!(puts.objects().all(|o| puts.base(o.group).is_some() == attached));
        }
        RequestBody::Clear(_)
        | RequestBody::Flush
        | RequestBody::Stats
        | RequestBody::Ping
        | RequestBody::Events(_) => {}
        RequestBody::Unpin(name)
        | RequestBody::Commit(name)
        | RequestBody::Abort(name)
        | RequestBody::Missing(name) => assert!(name > 0),
        RequestBody::Hold(name) | RequestBody::Release(name) => assert!(name > 0),
    }
    assert_eq!(
        request::encode(terms, &ask),
        body,
        "encoding the decoded request gives the same bytes"
    );
    true
}

fn read_outcome(body: &[u8]) -> bool {
    let Ok((_, answer)) = outcome::decode(body) else { return false };
    match answer {
        DecodedOutcome::Items(items) => assert_eq!(items.iter().count(), items.len()),
        DecodedOutcome::Bits(bits) => assert_eq!(bits.iter().count(), bits.len()),
        DecodedOutcome::Events(said) => {
            let items: Vec<EventItem> =
                said.iter().map(|happened| EventItem::of(&happened)).collect();
            let written = outcome::encode(
                request::Verb::Events,
                &OutcomeToSend::Events(&items, said.next, said.lost),
            );
            assert_eq!(written, body, "encoding the decoded outcome gives the same bytes");
        }
        DecodedOutcome::Views(views) => {
            let items: Vec<ViewItem> =
                views.iter().map(|view| ViewItem::of(view.key_hash(), view.location())).collect();
            assert_eq!(outcome::encode(request::Verb::View, &OutcomeToSend::Views(&items)), body);
        }
        DecodedOutcome::Number(_)
        | DecodedOutcome::Flushed(_)
        | DecodedOutcome::Text(_)
        | DecodedOutcome::Failed(_) => {}
    }
    true
}

#[test]
fn every_golden_body_is_read_by_its_decoder() {
    for (name, frame) in frames() {
        let (facts, _, body) = head::split(&frame, Some(VERSION)).expect(name);
        assert!(read_all(facts.kind, body), "{name}");
        // Neither longer nor shorter bodies are accepted; only a greeting may be longer.
        let longer = [body, &[0]].concat();
        let grows = [FrameKind::Hello, FrameKind::Welcome, FrameKind::Data].contains(&facts.kind)
            || facts.kind.is_bare();
        assert_eq!(read_all(facts.kind, &longer), grows, "{name}");
        for len in 0..body.len() {
            // These bodies have no count: fewer ranges are a valid body too.
            let unit = match facts.kind {
                FrameKind::Pull | FrameKind::Taken => 24,
                FrameKind::Targets => 32,
                FrameKind::Noticed => 16,
                _ => body.len(),
            };
            // The name of a client's host is optional, and read leniently.
            let greeting = facts.kind == FrameKind::Hello && len >= Greeting::BYTES;
            let whole = facts.kind == FrameKind::Data || greeting || (len > 0 && len % unit == 0);
            assert_eq!(read_all(facts.kind, &body[..len]), whole, "{name} len={len}");
        }
    }
}

proptest! {
    #![proptest_config(config(2048))]

    #[test]
    fn forged_bodies_are_refused_or_valid(
        which in any::<Index>(),
        edits in prop::collection::vec(
            (any::<Index>(), prop::bool::weighted(0.7), prop_oneof![Just(0u8), Just(1), Just(2), Just(0xff), any::<u8>()]),
            1..6,
        ),
    ) {
        let frames = frames();
        let (_, frame) = &frames[which.index(frames.len())];
        let (facts, _, body) = head::split(frame, Some(VERSION)).expect("whole");
        let mut forged = body.to_vec();
        if forged.is_empty() {
            return Ok(());
        }
        for (at, front, value) in edits {
            let within = if front { forged.len().min(HEAD) } else { forged.len() };
            forged[at.index(within)] = value;
        }
        read_all(facts.kind, &forged);
    }

    #[test]
    fn random_bytes_as_any_body_never_panic(kind in 0..FrameKind::ALL.len(), body in prop::collection::vec(any::<u8>(), 0..600)) {
        read_all(FrameKind::ALL[kind], &body);
        let _ = head::split(&body, Some(VERSION));
    }
}
