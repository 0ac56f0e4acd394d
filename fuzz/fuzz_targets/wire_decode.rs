//! A frame that decodes encodes to the same bytes; a body is refused or can be read completely.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagelith_layouts::checksum::{checksum64, key_hash};
use pagelith_layouts::wire::auth::{ChallengeBody, ProofBody};
use pagelith_layouts::wire::greeting::{Greeting, Refusal};
use pagelith_layouts::wire::outcome::{self, DecodedOutcome, EventItem, OutcomeToSend, ViewItem};
use pagelith_layouts::wire::placement::{self, PlacedBody};
use pagelith_layouts::wire::rails::Rails;
use pagelith_layouts::wire::request::{self, RequestBody, Verb};
use pagelith_layouts::wire::{FrameHead, FrameKind, head, pull, rdma_regions, shm_ref};

fuzz_target!(|data: &[u8]| {
    check(data);
    // A fuzzer cannot guess a checksum: also run the same bytes with both checksums corrected.
    let mut sealed = data.to_vec();
    let Some((head, body)) = sealed.split_first_chunk_mut::<{ FrameHead::BYTES }>() else { return };
    if head[6] != FrameKind::Data as u8 {
        head[20..24].copy_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
        head[32..40].copy_from_slice(&checksum64(body).to_le_bytes());
    }
    let sum = checksum64(&head[..56]);
    head[56..].copy_from_slice(&sum.to_le_bytes());
    check(&sealed);
});

fn check(bytes: &[u8]) {
    let Ok((facts, mac, body)) = head::split(bytes, Some(1)) else { return };
    assert_eq!(head::encode(&facts, mac)[..], bytes[..FrameHead::BYTES]);
    assert_eq!(body.len(), facts.body_bytes as usize);
    match facts.kind {
        FrameKind::Hello | FrameKind::Welcome => {
            if let Some(host) = Greeting::host_of(body) {
                assert!(host.bytes().all(|byte| byte.is_ascii_graphic()));
            }
            if let Ok(greeting) = Greeting::decode(body) {
                assert_eq!(greeting.encode(), body[..Greeting::BYTES]);
            }
        }
        FrameKind::Refusal => {
            if let Ok(refusal) = Refusal::decode(body) {
                assert_eq!(refusal.encode(), body);
            }
        }
        FrameKind::Challenge => drop(ChallengeBody::decode(body)),
        FrameKind::Proof => {
            if let Ok(proof) = ProofBody::decode(body) {
                assert_eq!(ProofBody::new(proof.key_name(), proof.nonce, proof.proof), Some(proof));
            }
        }
        FrameKind::Pull => {
            if let Ok(items) = pull::decode(body) {
                assert_eq!(pull::encode(&items.iter().collect::<Vec<_>>()), body);
            }
        }
        FrameKind::Shown => {
            if let Ok(decoded) = shm_ref::decode(body) {
                let pieces: Vec<_> = decoded.pieces.iter().collect();
                assert_eq!(shm_ref::encode(decoded.item, decoded.offset, &pieces), body);
                assert_eq!(decoded.length, pieces.iter().map(|piece| piece.length).sum::<u64>());
            }
        }
        FrameKind::Taken => {
            if let Ok(ranges) = shm_ref::decode_released(body) {
                assert_eq!(shm_ref::encode_released(&ranges.collect::<Vec<_>>()), body);
            }
        }
        FrameKind::Rails => {
            if let Ok(rails) = Rails::decode(body) {
                assert_eq!(rails.encode(), body);
                assert!(rails.rails.iter().all(|rail| !rail.device().is_empty()));
            }
        }
        FrameKind::Regions => {
            if let Ok(regions) = rdma_regions::decode(body) {
                let (mut items, mut keys) = (Vec::new(), Vec::new());
                for (item, of_item) in regions.iter() {
                    assert_eq!(item.chunks(), of_item.len() as u64);
                    items.push(item);
                    keys.extend(of_item.iter());
                }
                assert_eq!(rdma_regions::encode(&items, &keys), body);
            }
        }
        FrameKind::Targets => {
            if let Ok(items) = placement::decode_targets(body) {
                assert_eq!(placement::encode_targets(&items.iter().collect::<Vec<_>>()), body);
            }
        }
        FrameKind::Placed => {
            if let Ok(placed) = PlacedBody::decode(body) {
                assert_eq!(placed.encode(), body);
            }
        }
        FrameKind::Noticed => {
            if let Ok(items) = placement::decode_noticed(body) {
                assert_eq!(placement::encode_noticed(&items.iter().collect::<Vec<_>>()), body);
            }
        }
        FrameKind::Request => request(body),
        FrameKind::Outcome => outcome(body),
        FrameKind::Data
        | FrameKind::Cancel
        | FrameKind::Ping
        | FrameKind::Pong
        | FrameKind::Bye => {}
    }
}

fn request(body: &[u8]) {
    let Ok((terms, ask)) = request::decode(body) else { return };
    assert_eq!(request::encode(terms, &ask), body);
    if let RequestBody::Put(puts) = ask {
        let sums: usize = puts.objects().map(|o| o.checksums.len()).sum();
        assert!(sums <= body.len() / 16);
        assert!(
            puts.objects().all(|o| key_hash(&o.key) != [0; 16] && o.group < puts.group_count())
        );
    }
}

fn outcome(body: &[u8]) {
    let Ok((_, answer)) = outcome::decode(body) else { return };
    match answer {
        DecodedOutcome::Items(items) => assert_eq!(items.iter().count(), items.len()),
        DecodedOutcome::Bits(bits) => assert_eq!(bits.iter().count(), bits.len()),
        DecodedOutcome::Events(decoded) => {
            let items: Vec<EventItem> =
                decoded.iter().map(|happened| EventItem::of(&happened)).collect();
            assert_eq!(
                outcome::encode(
                    Verb::Events,
                    &OutcomeToSend::Events(&items, decoded.next, decoded.lost)
                ),
                body
            );
        }
        DecodedOutcome::Views(views) => {
            let items: Vec<ViewItem> =
                views.iter().map(|view| ViewItem::of(view.key_hash(), view.location())).collect();
            assert_eq!(outcome::encode(Verb::View, &OutcomeToSend::Views(&items)), body);
        }
        DecodedOutcome::Number(_)
        | DecodedOutcome::Flushed(_)
        | DecodedOutcome::Text(_)
        | DecodedOutcome::Failed(_) => {}
    }
}
