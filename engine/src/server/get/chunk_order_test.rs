//! Chunks of an object are read in any order, and sent in their own.

use pagelith_io::buffer::{AlignedBuf, Part};
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksum, Checksums};

use super::*;
use crate::api::group_info::GroupInfo;
use crate::api::outcome::ObjectMeta;
use crate::server::tests::{Pair, TIMEOUT, key};
use crate::server::{Op, Server};
use pagelith_transport::rights::Rights;

const CHUNKS: u64 = 3;
const LENGTH: u64 = CHUNKS * CHUNK_BYTES;
const ID: OpId = OpId(1);

/// A completed read of a chunk.
fn read(chunk: &Range<u64>) -> CompletedGet {
    let bytes = (chunk.end - chunk.start) as usize;
    read_into(AlignedBuf::new(bytes).expect("memory").into_part())
}

/// A completed read of a chunk into its memory.
fn read_into(part: Part) -> CompletedGet {
    let bytes = part.len() as u64;
    let checksums =
        Checksums::from_elem(Checksum::default(), (LENGTH / BLOCK_BYTES as u64) as usize);
    let meta = Box::new(ObjectMeta { checksums, group: GroupInfo::default() });
    let outcome = Ok(GetOutcome::Hit { tier: Tier::Ssd, bytes });
    CompletedGet::of(outcome, Destination([part].into()), LENGTH, Some(meta))
}

fn chunk(n: u64) -> Range<u64> {
    n * CHUNK_BYTES..(n + 1) * CHUNK_BYTES
}

/// A get of an object, all chunks of which are being read.
fn get_that_reads(deadline: Mono) -> GetOp {
    let call = CallContext { options: Options::default(), deadline, origin: PutOrigin::Put };
    let item = GetItem::new(key(1, "k"), None, LENGTH);
    let mut get = GetOp::new(call, [item].into_iter());
    get.next.clear();
    get.objects[0].state = ObjectState::Reading;
    (0..CHUNKS).for_each(|n| drop(get.reading.insert(Ticket(n), vec![(0, chunk(n))])));
    get
}

#[test]
fn chunks_read_in_any_order_are_all_sent() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut pair = Pair::new(Rights::all());
        let (ctx, link) = (&mut pair.server.ctx, &mut *pair.server.link);
        let deadline = ctx.shared().now().after(TIMEOUT);
        let mut get = get_that_reads(deadline);
        let mut outcome = None;
        for n in order {
            assert!(outcome.is_none(), "order={order:?}");
            get.done(ID, Ticket(n), vec![read(&chunk(n))]);
            outcome = get.advance(ctx, link, ID);
        }
        assert!(outcome.is_some(), "order={order:?}");
    }
}

#[test]
fn get_whose_chunks_the_link_refuses_ends_at_its_deadline() {
    let mut pair = Pair::new(Rights::all());
    let Server { ctx, link, ops, .. } = &mut pair.server;
    // The link has capacity for the first chunk only.
    for item in 1..link.capacity().pushes as u32 {
        let parts = vec![AlignedBuf::new(1).expect("memory").into_part()];
        let push = Push { op: OpId(2), item, offset: 0, parts, token: 0, allow_ref: false };
        link.push(push).expect("capacity");
    }
    let mut get = get_that_reads(ctx.shared().now());
    for n in 0..CHUNKS {
        let part = ctx.staging.pool().try_part(CHUNK_BYTES as usize).expect("memory");
        get.done(ID, Ticket(n), vec![read_into(part)]);
    }
    ops.insert(ID, Op::Get(get));
    pair.server.handle_events(Vec::new());
    assert_eq!(pair.server.ops(), 0, "it is answered");
    pair.server.poll();
    assert_eq!(pair.server.ctx.staging.pool().in_use(), 0, "its push is retracted");
}
