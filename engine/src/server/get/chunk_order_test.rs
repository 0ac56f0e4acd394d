//! Chunks of an object are read in any order, and sent in their own.

use pagelith_io::buffer::AlignedBuf;
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksum, Checksums};

use super::*;
use crate::api::group_info::GroupInfo;
use crate::api::outcome::ObjectMeta;
use crate::server::tests::{Pair, TIMEOUT, key};
use pagelith_transport::rights::Rights;

const CHUNKS: u64 = 3;
const LENGTH: u64 = CHUNKS * CHUNK_BYTES;
const ID: OpId = OpId(1);

/// A completed read of a chunk.
fn read(chunk: &Range<u64>) -> CompletedGet {
    let bytes = chunk.end - chunk.start;
    let part = AlignedBuf::new(bytes as usize).expect("memory").into_part();
    let checksums =
        Checksums::from_elem(Checksum::default(), (LENGTH / BLOCK_BYTES as u64) as usize);
    let meta = Box::new(ObjectMeta { checksums, group: GroupInfo::default() });
    let outcome = Ok(GetOutcome::Hit { tier: Tier::Ssd, bytes });
    CompletedGet::of(outcome, Destination([part].into()), LENGTH, Some(meta))
}

#[test]
fn chunks_read_in_any_order_are_all_sent() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut pair = Pair::new(Rights::all());
        let (ctx, link) = (&mut pair.server.ctx, &mut *pair.server.link);
        let deadline = ctx.shared().now().after(TIMEOUT);
        let call = CallContext { options: Options::default(), deadline, origin: PutOrigin::Put };
        let item = GetItem::new(key(1, "k"), None, LENGTH);
        let mut get = GetOp::new(call, [item].into_iter());
        get.next.clear();
        get.objects[0].state = ObjectState::Reading;
        let chunk = |n: u64| n * CHUNK_BYTES..(n + 1) * CHUNK_BYTES;
        (0..CHUNKS).for_each(|n| drop(get.reading.insert(Ticket(n), vec![(0, chunk(n))])));
        let mut outcome = None;
        for n in order {
            assert!(outcome.is_none(), "order={order:?}");
            get.done(ID, Ticket(n), vec![read(&chunk(n))]);
            outcome = get.advance(ctx, link, ID);
        }
        assert!(outcome.is_some(), "order={order:?}");
    }
}
